"""FedSGD, as Wu & Gong's table 2 has it or as McMahan et al. define it.

`p4` (default): FedAvg with all clients and one local epoch. `strict`: a client
adds up the gradient of all its images and the server takes one step a round:

  python -m launchers.main --config=configs/fedsgd.py[:smoke|nine]
  python -m launchers.main --config=configs/fedsgd.py:synthetic,variant=strict

Table rows: Wu & Gong table 2 (FedSGD), which equals FedAVG at S=1 there.
"""

from configs import fedpav
from fedreid_jax import errors
from fedreid_jax.config import parsing

VARIANTS = ('p4', 'strict')


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,variant=strict][,key=value...]`."""
  arg, variant = parsing.take_argument(arg, 'variant', VARIANTS[0])
  if variant not in VARIANTS:
    raise errors.ConfigError(
      f'unknown variant {variant!r}', '--config', f'one of {VARIANTS}'
    )
  config = fedpav.base('fedsgd', ('fedavg',))
  config.data.labels = 'max'
  if variant == 'strict':
    config.local.accumulate, config.local.drop_last = True, False
    config.optim.momentum, config.optim.nesterov = 0.0, False
  return parsing.recipe(arg, config, fedpav.PRESETS)
