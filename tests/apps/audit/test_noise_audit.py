"""The noise of a guarantee is found where it follows from a seed."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.apps.audit import noise_audit
from fedreid_jax.config import load, recipes, validation
from fedreid_jax.training import loaded_run, loop

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


def test_scores_of_wrong_guesses_are_standard_normal():
  noise = noise_audit._of_server('dp_fedavg', [(0, 1024)])
  guessed = [noise_audit.Secret(bytes([i] * 32), '') for i in range(200)]
  change = np.random.default_rng(0).normal(size=1024)
  found = noise_audit.scorer(noise, change, 3)(guessed)
  assert abs(found.mean()) < 4 / np.sqrt(200) and abs(found.std() - 1) < 0.2


def test_noise_that_no_attacker_sees_is_refused():
  with pytest.raises(errors.ConfigError, match='no parameter with noise'):
    noise_audit._observed(['params/a'], {'params/b': np.ones(3)})
