"""FedPav + client clustering (FedReIDBench, journal version).

Table rows: journal version, table 4 (local models, rank-1 against standalone).
A run leaves one model a cluster; `clusters` in results.json says who shares it.

  python -m launchers.main --config=configs/fedpav_cc.py[:smoke|nine]
  python -m launchers.main --config=configs/fedpav_cc.py:folder,data.root=DIR \
    --config.data.public=NAME
"""

from configs import fedpav
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  base = fedpav.base('fedpav_cc', ('fedpav', 'client_clustering'))
  return parsing.recipe(arg, base, fedpav.WITH_PUBLIC)
