"""The noise of a guarantee is found where it follows from a seed."""

import importlib
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import toy_run

from fedreid_jax import errors
from fedreid_jax.apps.audit import noise_audit
from fedreid_jax.config import load, recipes, validation
from fedreid_jax.core import prng, secret
from fedreid_jax.method.guarantee import Draws
from fedreid_jax.training import loaded_run, loop, named_models
from fedreid_jax.training.files import run_secret

SMALL = (
  'smoke,data.height=16,data.width=8,model.features=(16,32),rounds=2,'
  'data.identities=4,data.target_identities=4'
)
CLIENTS = (
  f'{SMALL},local.batch=4,data.num_clients=6,dp_fedavg.min_clients=6,'
  'dp_fedavg.delta=1e-2,'
  'dp_fedavg.epsilon=0.0,dp_fedavg.noise=2.0'
)
PERSONS = (
  f'{SMALL},model.pretrained=,model.norm=group,local.batch=8,local.steps=2,'
  'local.identities=4,dpsgd.trainable=,dpsgd.epsilon=0.0,dpsgd.noise=2.0,'
  'dpsgd.delta=1e-3'
)
RUNS = {'dp_fedavg': CLIENTS, 'dpsgd': PERSONS}


def audited(recipe, folder, **fields):
  config = recipes.recipe(recipe, RUNS[recipe])
  config.update_from_flattened_dict(fields)
  config = validation.validate(config)
  loop.train(config, folder)
  run = loaded_run.load(load.load_saved(folder), folder)
  return noise_audit.audit(run, folder, 64)


@pytest.mark.slow
@pytest.mark.parametrize('recipe', RUNS)
def test_noise_of_a_seed_is_recovered_and_that_of_the_system_is_not(
  recipe, tmp_path
):
  pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  seeded = audited(
    recipe, tmp_path / 'a', **{'privacy.secret': 'seed', 'seed': 1000}
  )
  assert seeded.failed == () and seeded.refuted == ''
  assert (seeded.recovered, seeded.best, seeded.guesses) == (True, 1000, 65)
  assert seeded.score == seeded.positive > 2 * seeded.threshold
  assert seeded.explained > 0.5
  if recipe == 'dpsgd':  # the secret of both is drawn in one place
    return
  drawn = audited(recipe, tmp_path / 'b', **{'privacy.secret': 'system'})
  assert drawn.failed == () and drawn.refuted == ''
  assert not drawn.recovered and drawn.explained < 0.01
  assert drawn.positive > 2 * drawn.threshold


def test_a_run_without_a_guarantee_is_refused(run, tmp_path):
  with pytest.raises(errors.ConfigError, match='has no guarantee'):
    noise_audit.audit(run, tmp_path, 64)


PLUGIN = """
import jax
import jax.numpy as jnp
import fedreid_jax.method as method

SCALE = 0.1

def drawn(key, params):
  own = {n: jax.random.fold_in(key, len(n)) for n in params}
  return {n: jax.random.laplace(own[n], x.shape) for n, x in params.items()}

def update(state, models, ctx):
  params, _ = method.trainable(models)
  noise = drawn(ctx.key, params)
  return state, models | {n: x + SCALE * noise[n] for n, x in params.items()}

def make():
  return method.Component(
    'laplace',
    server=method.ServerHooks(update=update),
    claim=lambda people: method.Claim(
      lambda rounds: [[method.Mechanism(1.0, 1.0, rounds)]], 1e-3, 'Laplace',
      draws=method.Draws('server.update', drawn),
    ),
  )
"""


@pytest.fixture
def laplace(tmp_path, monkeypatch):
  """Returns the module of a plug-in with noise of its own."""
  (tmp_path / 'other_noise').mkdir()
  (tmp_path / 'other_noise/laplace.py').write_text(PLUGIN)
  monkeypatch.syspath_prepend(tmp_path)
  yield importlib.import_module('other_noise.laplace')
  for name in ('other_noise.laplace', 'other_noise'):
    del sys.modules[name]


def test_noise_of_a_plug_in_is_recovered_where_it_follows_from_a_seed(
  laplace, tmp_path
):
  """The audit draws what the component draws, by the value of its claim."""
  run = toy_run.toy_run(('fedpav', laplace.__name__))
  config = toy.replaced(run.config, {'seed': 1000, 'privacy.secret': 'seed'})
  run = run._replace(config=config)
  root = run_secret.root(config, tmp_path, restart=True)
  whole = secret.Secret(root, run_secret.digest(config, run.federation))
  seed = prng.of_round(prng.data(config.seed), whole, 0)
  key = jax.random.fold_in(
    prng.key(jnp.asarray(seed), prng.Stream.SERVER, 0),
    prng.component_uid('laplace'),
  )
  first = named_models.network(config, run.federation, run.variables).variables
  _, last = laplace.update((), first, types.SimpleNamespace(key=key))
  found = noise_audit.audit(run._replace(variables=last), tmp_path, 16)
  assert found.failed == () and found.refuted == ''
  assert (found.recovered, found.best, found.coordinates) == (True, 1000, 348)
  assert found.score == found.positive > 2 * found.threshold
  assert found.explained > 0.99


def test_scores_of_wrong_guesses_are_standard_normal():
  noise = noise_audit._of_server(
    'any', lambda key: jax.random.normal(key, 1024)
  )
  guessed = [secret.Secret(bytes([i] * 32), '') for i in range(200)]
  change = np.random.default_rng(0).normal(size=1024)
  found = noise_audit.scorer(noise, change, 3)(guessed)
  assert abs(found.mean()) < 4 / np.sqrt(200) and abs(found.std() - 1) < 0.2


def test_noise_that_no_attacker_sees_is_refused():
  draws = Draws('client.gradient', lambda key, params: params)
  params = {'params/a': np.ones(3)}
  with pytest.raises(errors.ConfigError, match='no parameter with noise'):
    noise_audit._observed(draws, params, {'params/b': np.ones(3)})
