"""Recipes have a margin: they train at twice their rate, and on other bits."""

import json

import jax
import numpy as np
import pytest
import test_recipes

from configs import check, dfh
from fedreid_jax import assemble, experiment

# The presets' rounds and schedules on persons few enough for seconds.
SMALL = ','.join(
  (
    'synthetic,data.height=32,data.width=16,data.shots=2,data.identities=8',
    'data.target_identities=8,model.features=(16,32),model.width=0.125',
    'local.epochs=3,evaluation.every=99',
  )
)
NOT_LOSSES = {'round', 'event', 'clients', 'excluded', 'weights', 'clusters'}


@pytest.mark.slow
@pytest.mark.parametrize('recipe, arg', test_recipes.CALLS)
def test_twice_the_rate_trains(recipe, arg, tmp_path):
  config = test_recipes.config_of(recipe, SMALL + (f',{arg}' if arg else ''))
  config.optim.lr *= 2
  experiment.train(check.validate(config), tmp_path)
  jax.clear_caches()
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  history = [e for e in map(json.loads, lines) if e['event'] == 'train']
  assert len(history) == config.rounds
  assert history[-1]['accuracy'] > 50
  for name in history[0].keys() - NOT_LOSSES:
    values = [abs(e[name]) for e in history]
    first = next((v for v in values if v > 0), 0.0)
    assert max(values) <= 100 * max(first, 0.01), name


def final_map(seed: int, noise: float) -> float:
  """Returns the last mAP of the default run from perturbed first weights."""
  config = check.validate(dfh.get_config(f'synthetic,seed={seed}'))
  setup = assemble.build(config)
  rng = np.random.default_rng(seed)
  variables = {
    name: x + noise * rng.standard_normal(x.shape).astype(np.float32)
    if name.startswith('params/')
    else x
    for name, x in setup.variables.items()
  }
  executor = setup.executor
  server, clients = executor.init(variables)
  server, _ = executor.prepare(server, clients)
  for round_ in range(config.rounds):
    server, _ = executor.round(server, clients, round_)
  names = [c.name for c in setup.federation.clients]
  models = assemble.named_models(
    jax.device_get(server.shared),
    clients.personal,
    np.asarray(server.groups),
    names,
  )
  (entry,) = setup.evaluate(models)
  return entry['metrics']['mAP']


@pytest.mark.slow
def test_other_bits_give_the_same_result():
  """Types of CPU differ in the last bits of a float; 1e-6 is far more."""
  found = np.array(
    [[final_map(seed, noise) for noise in (0.0, 1e-6)] for seed in range(3)]
  )
  jax.clear_caches()
  assert found.min() > 30
  plain, other = found.mean(axis=0)
  assert abs(plain - other) < 10
