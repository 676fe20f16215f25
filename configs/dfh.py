"""DFH: federated domain generalisation by feature hallucination.

Local loss: cross-entropy and hard triplet of margin 0.5 on the normalised
feature, plus both on hallucinated features with weight 5. SGD, momentum 0.9,
weight decay 5e-4, PK batches, statistics shared after every round.

  python -m launchers.main --config=configs/dfh.py[:smoke]
  python -m launchers.main --config=configs/dfh.py:folder,data.root=DIR
"""

from configs import common


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  return common.recipe(arg, base(), PRESETS)


def base():
  """Returns the recipe before its presets."""
  config = common.default()
  config.name = 'dfh'
  config.components = ('fedpav', 'dfh')
  config.loss.triplet = 1.0
  config.local.sampler = 'pk'
  config.local.batch, config.local.identities = 32, 8
  config.optim.nesterov = False
  return config


PRESETS = {
  'synthetic': common.synthetic,
  'smoke': common.smoke,
  'folder': common.folder,
}
