"""Runs that clients or persons have left."""

import json

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.training import build, forgetting, loop, warm_start
from fedreid_jax.training.files import recorder, run_files

# In these rounds of seed 1, one client trains: station, station, plaza, campus.
CONFIG = toy.replaced(
  toy.synthetic_config(6),
  {
    'name': 'small',
    'components': ('fedpav',),
    'data.sources': ('plaza', 'campus', 'station'),
    'rounds': 4,
    'fraction': 0.3,
    'seed': 1,
    'checkpoint_every': 1,
    'checkpoints_kept': 'all',
  },
)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp('forget') / 'run'
  loop.train(CONFIG, folder)
  return folder


def leave(folder, clients=(), persons=(), changes=()):
  config = load.load_saved(folder, changes)
  return forgetting.leave(folder, config, clients, persons)


def states(folder):
  """All arrays of the last checkpoint of a run."""
  saved = run_files.checkpoints_of(folder)
  step = saved.find('latest')
  assert step == 4
  return saved._read(step, ['model', 'server', 'clients']) | {'host': None}


def files(folder):
  return {
    path: path.read_bytes() for path in folder.rglob('*') if path.is_file()
  }


@pytest.mark.exact
def test_a_person_who_left_was_never_there(finished, tmp_path):
  before = files(finished)
  left = leave(finished, persons=['plaza/2'])
  assert (left.touched, left.rest.data.without) == (('plaza',), ('plaza/2',))
  began = forgetting.start(left)
  assert (began.step, began.first) == (2, 3)
  forgetting.replay(left, tmp_path / 'gone', began)
  loop.train(left.rest, tmp_path / 'never')
  toy.assert_equal_trees(states(tmp_path / 'gone'), states(tmp_path / 'never'))
  assert files(finished) == before
  # Rounds before the replay leave no rows and no evaluations.
  rows = (tmp_path / 'gone/metrics.jsonl').read_text().splitlines()
  assert min(json.loads(row)['round'] for row in rows) == 3
  results = [
    json.loads((tmp_path / name / 'results.json').read_text())
    for name in ('gone', 'never')
  ]
  assert {entry['round'] for entry in results[0]['evaluation']} <= {3, 4}
  assert results[0]['evaluation'] == [
    entry for entry in results[1]['evaluation'] if entry['round'] >= 3
  ]
  # It knows its images and bytes, and is resumed.
  assert results[0]['communication'] == results[1]['communication']
  again = forgetting.replay(left, tmp_path / 'gone', began)
  assert again['rounds'] == 4


@pytest.mark.exact
def test_a_client_that_left_was_never_in_the_sources(finished, tmp_path):
  left = leave(finished, clients=['campus'])
  began = forgetting.start(left)
  assert began.step == 0  # other cohorts from the first round
  forgetting.replay(left, tmp_path / 'gone', began)
  never = toy.replaced(CONFIG, {'data.sources': ('plaza', 'station')})
  loop.train(never, tmp_path / 'never')
  toy.assert_equal_trees(states(tmp_path / 'gone'), states(tmp_path / 'never'))
  config = json.loads((tmp_path / 'gone/config.json').read_text())
  assert config['data']['without'] == ['campus']


@pytest.mark.exact
def test_a_client_that_joined_later_leaves_the_rounds_before(tmp_path):
  # A round lasts as many seconds as it has steps.
  file = tmp_path / 'times.csv'
  lines = ['client,from_s,until_s', 'campus,0,9999', 'station,0,9999']
  file.write_text('\n'.join([*lines, 'plaza,6,9999', '']))
  config = toy.replaced(
    CONFIG,
    {
      'fraction': 1.0,
      'availability.file': str(file),
      'availability.step_s': 1.0,
      'local.steps': 3,
    },
  )
  loop.train(config, tmp_path / 'run')
  left = leave(tmp_path / 'run', clients=['plaza'])
  began = forgetting.start(left)
  assert (began.step, began.first) == (2, 3)
  forgetting.replay(left, tmp_path / 'gone', began)
  loop.train(left.rest, tmp_path / 'never')
  toy.assert_equal_trees(states(tmp_path / 'gone'), states(tmp_path / 'never'))


@pytest.mark.exact
def test_a_replay_that_was_stopped_goes_on(finished, tmp_path, monkeypatch):
  left = leave(finished, persons=['plaza/2'])
  began = forgetting.start(left)
  round_ = loop.Run._round

  def stopped(run):
    round_(run)
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(loop.Run, '_round', stopped)
    with pytest.raises(KeyboardInterrupt):
      forgetting.replay(left, tmp_path / 'gone', began)
  forgetting.replay(left, tmp_path / 'gone', began)
  loop.train(left.rest, tmp_path / 'never')
  toy.assert_equal_trees(states(tmp_path / 'gone'), states(tmp_path / 'never'))


@pytest.mark.slow
def test_more_rounds_start_from_the_models_of_the_run(finished, tmp_path):
  left = leave(finished, persons=['plaza/2'])
  config = forgetting.continued(left, 1)
  assert (config.rounds, config.start_from) == (1, str(finished))
  results = forgetting.more_rounds(left, tmp_path / 'more', 1)
  assert results['rounds'] == 1
  setup = build.build(config)
  server, store = setup.rounds.init(setup.variables)
  server = warm_start.states(
    setup, server, store, str(finished), config.data, print
  )
  models = run_files.checkpoints_of(finished).restore_models(4, personal=True)
  for name, leaf in server.shared.items():
    np.testing.assert_array_equal(leaf, models[0][name])
  # The heads of the others are theirs, that of plaza has one person fewer.
  for k, name in enumerate(('campus', 'plaza', 'station')):
    own = store.row(k).personal['params/classifier/kernel']
    same = np.array_equal(own, models[1][k]['params/classifier/kernel'])
    assert same == (name != 'plaza')


@pytest.mark.slow
def test_more_rounds_without_the_largest_client(tmp_path):
  sources = 'plaza:identities=8', 'campus', 'station'
  fields = {'data.sources': sources, 'rounds': 1, 'fraction': 1.0}
  loop.train(toy.replaced(CONFIG, fields), tmp_path / 'run')
  name = json.loads((tmp_path / 'run/run.json').read_text())['clients'][1]
  left = leave(tmp_path / 'run', clients=[name['client']])
  forgetting.more_rounds(left, tmp_path / 'more', 1)
  heads = [
    run_files.checkpoints_of(tmp_path / folder).restore_models(1, True)[1]
    for folder in ('run', 'more')
  ]
  leaf = 'params/classifier/kernel'
  assert [own[0][leaf].shape[1] for own in heads] == [8, 6]


@pytest.mark.slow
def test_a_start_of_another_run_is_named_and_kept(finished, tmp_path):
  fields = {'start_from': str(finished), 'rounds': 3}
  loop.train(toy.replaced(CONFIG, fields), tmp_path / 'run')
  left = leave(tmp_path / 'run', persons=['plaza/2'])
  # Its first models may have learnt from them, whichever round they joined.
  assert forgetting.start(left) == forgetting.Start(0)
  assert left.rest.start_from == str(finished)
  (text,) = forgetting.notices(left)
  assert text.startswith(f'the run started from {finished}, whose models may')
  results = forgetting.replay(left, tmp_path / 'gone', forgetting.start(left))
  assert results['rounds'] == 3


@pytest.mark.slow
def test_who_cannot_leave(finished, tmp_path):
  for given, message in (
    ({'persons': ['9']}, "no person '9'"),
    ({'persons': ['plaza/99']}, "no person '99' in the training images"),
    ({'clients': ['plazza']}, 'did you mean plaza'),
    ({'clients': ['plaza', 'campus', 'station']}, 'no client is left'),
    ({}, 'nothing to leave out'),
  ):
    with pytest.raises(errors.ConfigError, match=message):
      leave(finished, **given)
  left = leave(finished, clients=['campus'], persons=['campus/1'])
  assert left.names == ('campus',)
  for into in (finished, finished / 'in_it'):
    with pytest.raises(errors.ConfigError, match='the run itself'):
      forgetting.replay(left, into, forgetting.Start(0))
  config = toy.replaced(load.load_saved(finished), {'data.without': ('plaza',)})
  with pytest.raises(errors.ConfigError, match='plaza left this run before'):
    forgetting.leave(finished, config, ['plaza'])
  with pytest.raises(errors.IntegrityError, match='no readable config'):
    leave(tmp_path, clients=['campus'])


@pytest.mark.slow
def test_the_folder_of_another_result_is_named(finished, tmp_path):
  (tmp_path / 'run.json').write_bytes((finished / 'run.json').read_bytes())
  (tmp_path / 'config.json').write_bytes(
    (finished / 'config.json').read_bytes()
  )
  left = leave(finished, clients=['campus'])
  for train in (
    lambda: forgetting.replay(left, tmp_path, forgetting.Start(0)),
    lambda: forgetting.more_rounds(left, tmp_path, 4),
  ):
    with pytest.raises(errors.ConfigError, match='wrote it: .*') as info:
      train()
    assert info.value.fix.startswith('choose another --into')


@pytest.mark.slow
def test_runs_that_no_other_run_repeats(finished, tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  for name in ('config.json', 'run.json'):
    (folder / name).write_bytes((finished / name).read_bytes())
  described = recorder.read_object(folder / 'run.json')
  described['clients'][0]['images'] += 1
  recorder.write_sealed(folder / 'run.json', described)
  with pytest.raises(errors.ConfigError, match='were real sites, or'):
    leave(folder, clients=['campus'])
  (folder / 'secret').write_text('')
  with pytest.raises(errors.ConfigError, match='follow from a secret'):
    leave(folder, clients=['campus'])


@pytest.mark.slow
def test_notices(finished):
  left = leave(finished, clients=['campus'])
  assert forgetting.notices(left) == []
  left = leave(finished, clients=['campus'], changes=['rounds=5'])
  (text,) = forgetting.notices(left)
  assert text.startswith('fields other than those of the run: rounds;')
  # As `--judge` asks for it where the run had no test of these persons.
  changes = 'data.targets=("campus",)', 'data.allow_overlap=True'
  other = leave(finished, clients=['campus'], changes=changes)
  (text,) = forgetting.notices(other)
  assert 'of the run: data.allow_overlap, data.targets;' in text
  # Such a run is none of which a checkpoint could be used.
  assert forgetting.start(left) == forgetting.Start(0)
  began = load.with_fields(left.config, {'start_from': '/other'})
  texts = forgetting.notices(left._replace(config=began))
  assert any('/other, whose models may have learnt' in text for text in texts)


@pytest.mark.slow
def test_a_method_that_judges_its_models_is_replayed_from_the_start(
  finished, monkeypatch
):
  left = leave(finished, persons=['plaza/2'])._replace(touched=())
  assert len(forgetting.notices(left)) == 1
  assert forgetting.start(left).step > 0
  monkeypatch.setattr(forgetting, 'judges', lambda component: True)
  assert forgetting.start(left) == forgetting.Start(0)
  assert forgetting.notices(left) == []


def test_touched_clients_are_those_with_other_pixels():
  before = toy.toy_clients()
  first, second, *rest = before
  pixels = np.asarray(second.images()).copy()
  pixels[0] = 255 - pixels[0]
  after = [second._replace(images=lambda: pixels), *rest]
  assert forgetting.touched(before, after) == (first.name, second.name)
  assert forgetting.touched(before, before) == ()
