"""FedPav + client clustering + cosine distance weight (FedReIDBench, journal).

Table rows: journal version, tables 4 and 5.

  python -m launchers.main --config=configs/fedpav_cc_cdw.py[:smoke|nine]
  python -m launchers.main --config=configs/fedpav_cc_cdw.py:folder \
    --config.data.root=DIR --config.data.public=NAME
"""

from configs import fedpav
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  base = fedpav.base('fedpav_cc_cdw', ('fedpav', 'client_clustering', 'cdw'))
  return parsing.recipe(arg, base, fedpav.WITH_PUBLIC)
