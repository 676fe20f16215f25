"""Every recipe has a margin: it trains at twice its rate, on other bits."""

import json

import jax
import numpy as np
import pytest
import test_recipes

from configs import check, dfh
from fedreid_jax import assemble, experiment

# Small enough for seconds, long enough to learn: some 60 steps a client.
LONGER = 'smoke,data.identities=8,data.target_identities=8,evaluation.every=99'
ROUNDS, EPOCHS = 10, 3
NOT_LOSSES = {'round', 'event', 'clients', 'excluded', 'weights', 'clusters'}
# One step a round.
SINGLE = {('fedsgd', 'variant=strict'): 60}


@pytest.mark.slow
@pytest.mark.parametrize('recipe, arg', test_recipes.CALLS)
def test_twice_the_rate_trains(recipe, arg, tmp_path):
  config = test_recipes.config_of(recipe, LONGER + (f',{arg}' if arg else ''))
  rounds = SINGLE.get((recipe, arg), ROUNDS)
  stretch = rounds / config.rounds
  config.rounds = rounds
  config.optim.points = tuple((r * stretch, f) for r, f in config.optim.points)
  if (recipe, arg) not in SINGLE:
    config.local.epochs = EPOCHS
  config.optim.lr *= 2
  experiment.train(check.validate(config), tmp_path)
  jax.clear_caches()
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  history = [e for e in map(json.loads, lines) if e['event'] == 'train']
  assert len(history) == rounds
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
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_other_bits_give_the_same_result(seed):
  """Types of CPU differ in the last bits of a float; 1e-6 is far more."""
  plain, other = final_map(seed, 0.0), final_map(seed, 1e-6)
  jax.clear_caches()
  assert plain > 30
  assert abs(plain - other) < 10
