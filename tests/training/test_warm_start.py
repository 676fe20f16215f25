import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.data import federation
from fedreid_jax.training import build, named_models, warm_start
from fedreid_jax.training.files import checkpoint, recorder


@pytest.fixture(scope='module')
def setups():
  return {}


@pytest.fixture
def make_setup(config, clients, monkeypatch, setups):
  """Returns (setup, its first states) of components on some toy clients."""

  def one(*components, chosen=clients, **fields):
    built = federation.Federation(
      chosen, (), toy.IMAGE_SHAPE, (0.5,), (0.25,), 'toy'
    )
    monkeypatch.setattr(build.load, 'load', lambda *_, **__: built)
    own = toy.replaced(
      config, {'components': components, 'execution.devices': 1, **fields}
    )
    names = [(c.name, c.num_images, c.num_identities) for c in chosen]
    key = repr(own), *names
    if key not in setups:
      setups[key] = build.build(own)
    server, store = setups[key].rounds.init(setups[key].variables)
    return setups[key], server, store.stacked()

  return one


def begun(setup, server, folder, own=None, say=print):
  """Returns the states of the server and of all clients after a warm start."""
  _, store = setup.rounds.init(setup.variables)
  server = warm_start.states(
    setup, server, store, str(folder), own or data(), say
  )
  return server, store.stacked()


def data(*targets, world_seed=0, source='synthetic_v1'):
  """The fields of `config.data` that a start reads."""
  return SimpleNamespace(
    source=source,
    targets=targets,
    world_seed=world_seed,
    allow_overlap=False,
  )


def left_by(workdir, setup, server, states, sources=(), source='synthetic'):
  """Saves a run as if training had moved every leaf by a number of its own."""
  rng = np.random.default_rng(0)

  def move(leaf):
    return np.asarray(leaf) + rng.normal(size=np.shape(leaf)).astype(np.float32)

  server = server.replace(shared=jax.tree.map(move, server.shared))
  states = states.replace(personal=jax.tree.map(move, states.personal))
  clients = setup.federation.clients
  workdir.mkdir(exist_ok=True)
  saved = checkpoint.Checkpoints(workdir)
  host = {
    'clients': [c.name for c in clients],
    'source': 'datasets' if 'regdb:trial=1' in sources else source,
    'sources': sources,
    'world_seed': 0,
  }
  saved.save(3, jax.device_get(server), states, host, None)
  table = [{'client': c.name, 'identities': c.num_identities} for c in clients]
  recorder.write_json(workdir / 'run.json', {'clients': table})
  return jax.device_get(server.shared), states.personal


def test_shared_and_personal_parameters_start_where_they_ended(
  make_setup, tmp_path
):
  setup, server, states = make_setup('fedpav', 'moon')
  shared, personal = left_by(tmp_path, setup, server, states)
  again, began = begun(setup, server, tmp_path)
  toy.assert_equal_trees(jax.device_get(again.shared), shared)
  toy.assert_equal_trees(began.personal, personal)
  # The states of components also start from the other run's model.
  remembered, has_trained = began.states['moon']
  assert not has_trained.any()
  for name, leaf in personal.items():
    np.testing.assert_array_equal(remembered[name], leaf)
  for name, leaf in shared.items():
    for k in range(4):
      np.testing.assert_array_equal(remembered[name][k], leaf[0])


def test_standalone_starts_from_the_federation_and_its_own_head(
  make_setup, tmp_path
):
  shared, personal = left_by(tmp_path, *make_setup('fedpav'))
  setup, server, _ = make_setup('standalone')
  server, began = begun(setup, server, tmp_path)
  assert server.shared == {}
  for name, leaf in shared.items():
    for k in range(4):
      np.testing.assert_array_equal(began.personal[name][k], leaf[0])
  for name, leaf in personal.items():
    np.testing.assert_array_equal(began.personal[name], leaf)


def test_standalone_goes_on_where_standalone_ended(make_setup, tmp_path):
  setup, server, states = make_setup('standalone')
  _, personal = left_by(tmp_path, setup, server, states)
  _, began = begun(setup, server, tmp_path)
  toy.assert_equal_trees(began.personal, personal)


def test_fewer_clients_are_found_by_name(make_setup, clients, tmp_path):
  _, personal = left_by(tmp_path, *make_setup('standalone'))
  setup, server, _ = make_setup('standalone', chosen=clients[1::2])
  _, began = begun(setup, server, tmp_path)
  for name, leaf in personal.items():
    np.testing.assert_array_equal(began.personal[name], leaf[1::2])


def test_new_clients_may_start_without_personal_parameters(
  make_setup, clients, tmp_path
):
  shared, _ = left_by(tmp_path, *make_setup('fedavg'))
  other = toy.toy_client('elm', 8)
  setup, server, _ = make_setup('fedavg', chosen=(other,))
  server, began = begun(setup, server, tmp_path)
  toy.assert_equal_trees(jax.device_get(server.shared), shared)
  assert began.personal == {}


def refused(
  make_setup, tmp_path, message, *components, error=errors.ConfigError, **k
):
  setup, server, _ = make_setup(*components, **k)
  with pytest.raises(error, match=message):
    begun(setup, server, tmp_path)


def test_clients_that_were_not_there_have_new_heads(
  make_setup, clients, tmp_path, capsys
):
  """One has another name, one other persons, two are as they were."""
  shared, personal = left_by(tmp_path, *make_setup('fedpav'))
  chosen = (
    toy.toy_client('ash', 9, 2),
    *clients[1:3],
    toy.toy_client('elm', 8),
  )
  setup, server, fresh = make_setup('fedpav', chosen=chosen)
  names = [c.name for c in setup.federation.clients]
  server, began = begun(setup, server, tmp_path)
  toy.assert_equal_trees(jax.device_get(server.shared), shared)
  for leaf, values in began.personal.items():
    for k, name in enumerate(names):
      if name in ('ash', 'elm'):
        np.testing.assert_array_equal(values[k], fresh.personal[leaf][k])
      else:
        old = sorted(c.name for c in clients).index(name)
        np.testing.assert_array_equal(values[k], personal[leaf][old])
  out = capsys.readouterr().out
  assert out.count('starts with new params/classifier') == 2


def test_a_classifier_may_have_fewer_columns_there(
  make_setup, clients, tmp_path
):
  """Another client has more identities, so that all have more columns."""
  shared, personal = left_by(tmp_path, *make_setup('fedpav'))
  chosen = (*clients, toy.toy_client('elm', 9, 5))
  setup, server, fresh = make_setup('fedpav', chosen=chosen)
  server, began = begun(setup, server, tmp_path)
  toy.assert_equal_trees(jax.device_get(server.shared), shared)
  for leaf, values in began.personal.items():
    assert values.shape[-1] == 5 and personal[leaf].shape[-1] == 3
    for k in range(len(clients)):
      np.testing.assert_array_equal(values[k][..., :3], personal[leaf][k])
    np.testing.assert_array_equal(values[-1], fresh.personal[leaf][-1])


def test_alone_from_a_federation_of_others(make_setup, tmp_path):
  """What was shared there is where a new client starts, but the classifier."""
  shared, _ = left_by(tmp_path, *make_setup('fedavg'))
  other = toy.toy_client('elm', 8)
  setup, server, fresh = make_setup('standalone', chosen=(other,))
  _, began = begun(setup, server, tmp_path)
  for name, leaf in began.personal.items():
    known = '/classifier/' not in name
    wanted = shared[name][0] if known else fresh.personal[name][0]
    np.testing.assert_array_equal(leaf[0], wanted)


def test_models_that_were_not_there(make_setup, clients, config, tmp_path):
  refused(
    make_setup, tmp_path, 'no checkpoint', 'fedpav', error=errors.IntegrityError
  )
  left_by(tmp_path, *make_setup('standalone'))
  refused(make_setup, tmp_path, 'was not shared', 'fedpav')


def test_classifiers_have_the_padding_of_the_new_run(
  make_setup, clients, tmp_path
):
  _, personal = left_by(tmp_path, *make_setup('standalone'))
  wide = (*clients[:3], toy.toy_client('dogwood', 11, 5))
  setup, server, _ = make_setup('standalone', chosen=wide)
  _, began = begun(setup, server, tmp_path)
  name = 'params/classifier/kernel'
  assert personal[name].shape[2] == 3 and began.personal[name].shape[2] == 5
  for k in range(3):
    found = began.personal[name][k]
    np.testing.assert_array_equal(found[:, :3], personal[name][k])
    initial = np.asarray(setup.variables[name])[:, 3:]
    np.testing.assert_array_equal(found[:, 3:], initial)


def test_several_models_of_a_server_are_no_start_of_one(
  make_setup, clients, tmp_path
):
  setup, server, states = make_setup('fedpav')
  shared = {
    name: np.repeat(np.asarray(leaf), 4, axis=0)
    for name, leaf in server.shared.items()
  }
  clustered = server.replace(shared=shared, groups=np.arange(4) // 2)
  shared, _ = left_by(tmp_path, setup, clustered, states)
  refused(make_setup, tmp_path, '2 models', 'fedpav')
  setup, server, _ = make_setup('standalone')
  _, began = begun(setup, server, tmp_path)
  for name, leaf in shared.items():
    np.testing.assert_array_equal(began.personal[name], leaf[[0, 0, 1, 1]])


def test_another_trial_of_regdb_is_refused(make_setup, tmp_path):
  """Its test persons are training persons of the first run."""
  setup, server, states = make_setup('fedpav')
  left_by(tmp_path, setup, server, states, sources=('regdb:trial=1',))
  begun(setup, server, tmp_path, data('regdb:trial=1'))
  with pytest.raises(errors.ConfigError, match='trial'):
    begun(setup, server, tmp_path, data('regdb:trial=2'))


def test_a_target_of_the_other_runs_sources_is_refused(make_setup, tmp_path):
  setup, server, states = make_setup('fedpav')
  left_by(tmp_path, setup, server, states, sources=('plaza:identities=9',))
  own = setup, server, tmp_path
  begun(*own, data('mall'))
  begun(*own, data('plaza', world_seed=1))
  with pytest.raises(errors.ConfigError, match='plaza of world 0'):
    begun(*own, data('mall', 'plaza:shots=2'))


def test_the_world_of_weights_before_the_other_run_is_refused(
  make_setup, tmp_path
):
  setup, server, states = make_setup('fedpav')
  left_by(tmp_path, setup, server, states, sources=('plaza',))
  first = tmp_path / 'first'
  first.mkdir()
  config = toy.toy_config()
  for folder, start, weights in (
    (tmp_path, str(first), ''),
    (first, '', 'convnet-synthetic'),
  ):
    config = toy.replaced(
      config, {'start_from': start, 'model.pretrained': weights}
    )
    given = load.to_json(config)
    recorder.write_json(folder / 'config.json', given)
  own = setup, server, tmp_path
  begun(*own, data('mall'))
  begun(*own, data('mall', world_seed=1000, source='synthetic_v2'))
  with pytest.raises(errors.ConfigError, match='persons of world 1000'):
    begun(*own, data('mall', world_seed=1000))


@pytest.mark.slow
def test_the_persons_of_another_version_of_the_world_are_others(
  make_setup, tmp_path
):
  setup, server, states = make_setup('fedpav')
  for saved, same, other in (
    ('synthetic', 'synthetic_v1', 'synthetic'),  # saved before versions
    ('synthetic_v1', 'synthetic_v1', 'synthetic_v2'),
    ('synthetic_v2', 'synthetic', 'synthetic_v1'),
  ):
    workdir = tmp_path / saved
    left_by(workdir, setup, server, states, ('plaza',), source=saved)
    own = setup, server, workdir
    begun(*own, data('plaza', source=other))
    begun(*own, data('plaza', source='folder'))
    with pytest.raises(errors.ConfigError, match='plaza of world 0'):
      begun(*own, data('plaza', source=same))


@pytest.mark.slow
def test_a_frozen_teacher_is_the_federation_with_the_own_head(
  make_setup, config, tmp_path
):
  """Wu and Gong's supervised variant: two rounds leave the teacher alone."""
  shared, personal = left_by(
    tmp_path, *make_setup('fedpav', 'uniform', 'local_expert')
  )
  fields = {'local_expert.frozen': True, 'optim.reset_each_round': False}
  setup, server, _ = make_setup('standalone', 'local_expert', **fields)
  _, store = setup.rounds.init(setup.variables)
  server = warm_start.states(setup, server, store, str(tmp_path), data(), print)
  for round_ in range(2):
    server, _ = setup.rounds.round(server, store, round_)
  began = store.stacked()
  teacher, kept = began.states['local_expert']
  assert kept.all()
  for k in range(4):
    for name, leaf in shared.items():
      np.testing.assert_array_equal(teacher[name][k], leaf[0])
    for name, leaf in personal.items():
      np.testing.assert_array_equal(teacher[name][k], leaf[k])
  moved = [
    (began.personal[n] != teacher[n]).any() for n in teacher if 'params' in n
  ]
  assert all(moved)


def test_runs_that_started_from_each_other_are_no_endless_loop(tmp_path):
  folders = [tmp_path / 'a', tmp_path / 'b']
  for folder, other in zip(folders, folders[::-1], strict=True):
    folder.mkdir()
    saved = {'model': {'pretrained': ''}, 'start_from': str(other)}
    (folder / 'config.json').write_text(json.dumps(saved))
  warm_start._check_weights(folders[0], data('mall'))


def test_a_checkpoint_without_models_is_one_line():
  with pytest.raises(errors.ConfigError, match='have not trained'):
    named_models.choose({}, '')
