"""MOON (Li et al., CVPR 2021) on FedPav's split of the model.

Table rows: L2RW table 1 compares with it, there with a classifier that travels.

  python -m launchers.main --config=configs/moon.py[:smoke|nine]
  python -m launchers.main --config=configs/moon.py:folder,data.root=DIR
"""

from configs import fedpav
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  base = fedpav.base('moon', ('fedpav', 'moon'))
  return parsing.recipe(arg, base, fedpav.PRESETS)
