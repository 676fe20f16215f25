"""SNR (Jin et al., CVPR 2020) under FedPav: style normalisation, restitution.

Modules after every stage take style out of the maps and put back what tells
people apart. `loss=entropy` is the journal's loss with a classifier a stage.

  python -m launchers.main --config=configs/snr.py[:smoke|nine]
  python -m launchers.main --config=configs/snr.py:folder,data.root=DIR

Table rows: DFH table 1, SNR: mAP / rank-1 on CUHK02, Market-1501, CUHK03 are in
configs/tables. `paper` is DFH's setting; what was measured here is in
docs/results.md.
"""

from configs import dfh
from fedreid_jax import errors
from fedreid_jax.config import parsing

LOSSES = {'distance': 'snr', 'entropy': 'snr_entropy'}


def get_config(arg: str | None = None):
  """Returns the recipe.

  Args:
    arg: `PRESET[,loss=entropy][,space=b][,key=value...]`.
  """
  arg, loss = parsing.take_argument(arg, 'loss', 'distance')
  arg, space = parsing.take_argument(arg, 'space', 'f')
  config = base('snr', ('fedpav', 'snr'), loss, space)
  return parsing.recipe(arg, config, dfh.PRESETS)


def base(name: str, components: tuple[str, ...], loss: str, space: str):
  """Returns a recipe with SNR's modules before its presets.

  Args:
    name: of the recipe.
    components: of the method.
    loss: one of `LOSSES`.
    space: see `dfh.base`.
  """
  if loss not in LOSSES:
    raise errors.ConfigError(
      f'unknown loss {loss!r}', '--config', f'one of {", ".join(LOSSES)}'
    )
  config = dfh.base(space)
  config.name, config.components = name, components
  config.model.variant, config.snr.loss = LOSSES[loss], loss
  return config
