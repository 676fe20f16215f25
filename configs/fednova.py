"""FedNova (Wang et al., NeurIPS 2020) on FedPav's split of the model.

Table rows: FedReIDBench journal version, table 4 (local models, rank-1 against
standalone).

  python -m launchers.main --config=configs/fednova.py[:smoke|nine]
  python -m launchers.main --config=configs/fednova.py:folder,data.root=DIR
"""

from configs import fedpav
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  base = fedpav.base('fednova', ('fedpav', 'fednova'))
  return parsing.recipe(arg, base, fedpav.PRESETS)
