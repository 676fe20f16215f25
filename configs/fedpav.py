"""FedPav (FedReIDBench, ACM MM 2020, Algorithm 1): the base of DFH's tables.

The setting of `dfh.py` without hallucination: cross-entropy and hard triplet,
everything but the classifier averaged by number of images (DFH table 2, row 1).

  python -m launchers.main --config=configs/fedpav.py[:smoke]
  python -m launchers.main --config=configs/fedpav.py:folder,data.root=DIR
"""

from configs import common, dfh


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  return common.recipe(arg, base(), dfh.PRESETS)


def base():
  """Returns the recipe before its presets."""
  config = dfh.base()
  config.name = 'fedpav'
  config.components = ('fedpav',)
  return config
