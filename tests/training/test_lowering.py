"""Rounds are lowered for accelerators without methods of the CPU."""

import re

import pytest

from fedreid_jax.config import recipes, validation
from fedreid_jax.round import ahead
from fedreid_jax.training import build

SMALL = ','.join(
  (
    'smoke,data.height=32,data.width=16,data.shots=2,data.identities=4',
    'data.target_identities=4,model.width=0.125,model.features=(8,16)',
  )
)
# Guarantees need more identities or clients, or other numbers.
IDENTITIES = (
  'data.identities=8,dpsgd.epsilon=0.0,dpsgd.trainable=.*,'
  'model.features=(32,64,128,128)'
)
OWN = {
  'dp_fedavg': 'data.num_clients=6,fraction=1.0,dp_fedavg.epsilon=0.0,'
  'dp_fedavg.min_clients=6,dp_fedavg.delta=0.01',
  'availability': 'data.num_clients=8',
  'stragglers': 'data.num_clients=8',
  'dpsgd': IDENTITIES,
  'dfh_dp': IDENTITIES,
}
FAST = ('dfh',)


# Components with computations of another kind on clients or the server.
COMPONENTS = {
  *('dfh', 'local_expert', 'dpsgd', 'dacs', 'robust', 'secagg', 'compress'),
  *('cluster_contrast', 'client_clustering', 'kd', 'snr', 'mixstyle', 'ccst'),
  *('fedsr', 'agw', 'dns', 'deen', 'lba'),
}


def covering() -> list[str]:
  """Returns recipes that have every network and layer, and `COMPONENTS`."""
  parts = {}
  for name in recipes.names():
    config = recipes.recipe(name, 'smoke')
    model = {f: config.model[f] for f in ('name', 'neck', 'norm')}
    own = {f'{field}={value}' for field, value in model.items()}
    parts[name] = own | (COMPONENTS & {*config.components})
  chosen, left = list(FAST), set().union(*parts.values()) - parts[FAST[0]]
  while left:
    best = max(parts, key=lambda name: len(parts[name] & left))
    chosen.append(best)
    left -= parts[best]
  return chosen


# The kernel gradient of autodiff, which `models.layers.conv` replaces on CPUs.
AUTODIFF = '[f, 0, 1, b]x[i, 0, 1, o]'
ACCELERATORS = ('cuda', 'tpu')
SHARDING = {'Sharding', 'SPMDFullToShardShape', 'SPMDShardToFullShape'}


@pytest.mark.slow
@pytest.mark.parametrize(
  'recipe',
  [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
    for name in covering()
  ],
)
@pytest.mark.usefixtures('shallow')
def test_a_round_has_no_method_of_the_cpu(recipe):
  path = recipes.folder() / f'{recipe}.py'
  # Fields of the recipe's own list override those of the other one.
  spec = ':'.join(filter(None, (str(path), OWN.get(recipe))))
  config = validation.validate(recipes.recipe(spec, SMALL))
  setup = build.build(config)
  server, states = setup.rounds.init(setup.variables, setup.pretrained)
  programs = ahead.programs(setup.rounds, server, states)
  assert AUTODIFF not in programs['training'].lower().as_text()
  lowered = [programs['aggregation'].lower(lowering_platforms=ACCELERATORS)]
  for platform in ACCELERATORS:
    lowered.append(programs['training'].lower(lowering_platforms=(platform,)))
    assert AUTODIFF in lowered[-1].as_text()
  for program in lowered:
    calls = set(re.findall(r'custom_call @(\w+)', program.as_text()))
    assert calls <= SHARDING
