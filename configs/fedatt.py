"""FedATT (Ji et al., IJCNN 2019): attentive aggregation of all leaves.

Table rows: Wu & Gong table 2, with the 'max' label space.

  python -m launchers.main --config=configs/fedatt.py[:smoke|nine]
  python -m launchers.main --config=configs/fedatt.py:folder,data.root=DIR
"""

from configs import fedpav
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  config = fedpav.base('fedatt', ('fedavg', 'fedatt'))
  config.data.labels = 'max'
  return parsing.recipe(arg, config, fedpav.PRESETS)
