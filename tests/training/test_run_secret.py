"""The secret of a run is kept with the run, and nowhere else."""

import shutil
import stat
import warnings

import jax
import numpy as np
import pytest
import toy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg, fedpav
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import secret, trees
from fedreid_jax.models import convnet, reid
from fedreid_jax.training import callbacks, loop, named_models
from fedreid_jax.training.files import recorder, run_files, run_secret

METHOD = (fedpav.make(), dp_fedavg.make())


def root(config, folder, restart=False):
  return run_secret.root(config, folder, restart)


def test_the_file_has_the_secret_and_only_its_owner_reads_it(config, tmp_path):
  config = toy.replaced(config, {'privacy.secret': 'system'})
  drawn = root(config, tmp_path)
  assert drawn != root(config, tmp_path)
  run_secret.keep(config, tmp_path, drawn, begun=False)
  (path,) = tmp_path.iterdir()
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  assert root(config, tmp_path) == drawn
  assert root(config, tmp_path, restart=True) != drawn


@pytest.mark.parametrize('mode', [0o644, 0o640, 0o604])
def test_a_secret_that_others_could_read_is_closed(config, tmp_path, mode):
  config = toy.replaced(config, {'privacy.secret': 'system'})
  drawn = root(config, tmp_path)
  run_secret.keep(config, tmp_path, drawn, begun=False)
  path = tmp_path / run_files.SECRET
  path.chmod(mode)
  with pytest.warns(errors.ExposedSecretWarning) as said:
    assert root(config, tmp_path) == drawn
  (one,) = said
  assert f'had the mode {mode:o}, it is 600 now' in str(one.message)
  assert drawn.hex() not in str(one.message)
  assert stat.S_IMODE(path.stat().st_mode) == 0o600
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    assert root(config, tmp_path) == drawn


def test_a_secret_of_a_seed_needs_no_file(config, tmp_path):
  config = toy.replaced(config, {'privacy.secret': 'seed'})
  found = root(config, tmp_path)
  run_secret.keep(config, tmp_path, found, begun=False)
  assert found == secret.of_seed(config.seed) and not [*tmp_path.iterdir()]


@pytest.mark.parametrize('damage', [b'', b'0' * 64, b'\xff', b'0' * 82])
def test_a_damaged_secret_is_refused(config, tmp_path, damage):
  config = toy.replaced(config, {'privacy.secret': 'system'})
  run_secret.keep(config, tmp_path, root(config, tmp_path), begun=False)
  (tmp_path / run_files.SECRET).write_bytes(damage)
  with pytest.raises(errors.IntegrityError, match='damaged'):
    root(config, tmp_path)


def test_a_missing_secret_of_a_run_is_refused(config, tmp_path):
  config = toy.replaced(config, {'privacy.secret': 'system'})
  with pytest.raises(errors.IntegrityError, match='secret is missing'):
    run_secret.keep(config, tmp_path, root(config, tmp_path), begun=True)


def test_only_methods_that_protect_have_a_secret(config, clients):
  federation = toy.toy_federation(clients)

  def of(*components):
    return run_secret.make(config, federation, components, None)

  assert of(fedpav.make()) is None
  assert of(*METHOD) is not None


def test_the_digest_follows_data_and_configuration(config, clients):
  federation = toy.toy_federation(clients)

  def digest(changed=federation, **fields):
    return run_secret.digest(toy.replaced(config, fields), changed)

  first = clients[0]
  fewer = first._replace(labels=np.where(first.labels == 1, 0, first.labels))
  without = federation._replace(clients=(fewer, *clients[1:]))
  assert digest() == digest(**{'execution.devices': 2, 'execution.width': 0})
  found = {
    digest(),
    digest(without),
    digest(federation._replace(digest='other')),
    digest(**{'optim.lr': 0.5}),
    digest(seed=9),
  }
  assert len(found) == 5


def simulated(images, fields):
  clients = [
    fr.client_data(name, images[name], np.arange(8) % 4) for name in images
  ]
  return fr.Simulation(
    lambda identities: reid.ReIDNet(convnet.ConvNet((4,)), identities),
    [fedpav.make(), dp_fedavg.make(dp_fedavg.Options(noise=1e4))],
    clients,
    fields={'local.batch': 4} | fields,
  )


def changes(images, fields):
  """Returns the change of the shared parameters in a round, mostly noise."""
  simulation = simulated(images, fields)
  state = simulation.init(jax.random.key(0))
  before = trees.trainable(jax.device_get(state.server.shared))[0]
  state, _ = simulation.round(state)
  after = jax.device_get(state.server.shared)
  return np.concatenate([np.ravel(after[n] - before[n]) for n in before])


@pytest.mark.slow
def test_the_difference_of_two_runs_has_the_noise_of_both():
  """A person leaves and the run is repeated with the same seed.

  With equal noise the difference of the models would be that of the updates,
  which is at most twice the clip of 0.1 beside noise of 1,000.
  """
  rng = np.random.default_rng(0)
  images = {n: rng.integers(0, 256, (8, 16, 8, 3), np.uint8) for n in 'ab'}
  without = images | {'a': images['b']}
  fields = {'privacy.secret': 'seed'}
  one, other = changes(images, fields), changes(without, fields)
  ratio = (one - other).std() / one.std()
  assert abs(ratio - np.sqrt(2)) < 0.3
  again = changes(images, fields)
  np.testing.assert_array_equal(again, one)


PRIVATE = (
  'smoke,data.height=16,data.width=8,model.features=(4,),rounds=2,'
  'data.identities=4,data.target_identities=4,local.batch=4,checkpoint_every=1,'
  'data.num_clients=6,dp_fedavg.min_clients=6,dp_fedavg.delta=1e-2,'
  'dp_fedavg.epsilon=0.0,dp_fedavg.noise=2.0'
)


class Stop(callbacks.Callback):
  """Ends a run after its first round."""

  def on_round(self, event):
    raise callbacks.StopTraining


def train(folder, origin, stopped=False):
  config = recipes.recipe('dp_fedavg', PRIVATE)
  config.privacy.secret = origin
  calls = [Stop()] if stopped else []
  results = loop.train(validation.validate(config), folder, callbacks=calls)
  saved = run_files.checkpoints_of(folder)
  models = named_models.restore(saved, 'latest').models
  return trees.digest(models['global']), results['privacy']


@pytest.mark.slow
def test_a_run_keeps_its_secret_and_resumes_with_it(tmp_path):
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  train(tmp_path / 'a', 'system', stopped=True)
  results = recorder.read_object(tmp_path / 'a' / recorder.RESULTS)
  assert results['rounds'] == 1
  shutil.copytree(tmp_path / 'a', tmp_path / 'copy')
  digest, privacy = train(tmp_path / 'a', 'system')
  assert train(tmp_path / 'copy', 'system')[0] == digest
  assert train(tmp_path / 'other', 'system')[0] != digest
  assert secret.STUDY not in privacy
  kept = (tmp_path / 'a' / run_files.SECRET).read_text().split()[0]
  for path in (tmp_path / 'a').rglob('*'):
    if path.is_file() and path.name != run_files.SECRET:
      content = path.read_bytes()
      assert kept.encode() not in content, path
      assert bytes.fromhex(kept) not in content, path
  _, studied = train(tmp_path / 'c', 'seed')
  assert studied.endswith(secret.STUDY)
  assert not (tmp_path / 'c' / run_files.SECRET).exists()
