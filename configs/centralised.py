"""Centralised training: all domains' images at one client.

The reference of FedReIDBench (journal version, table 3) that no federation is
allowed. The classifier has the identities of all domains.

  python -m launchers.main --config=configs/centralised.py[:smoke|nine]
  python -m launchers.main --config=configs/centralised.py:folder,data.root=DIR
"""

from configs import fedpav, standalone
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  config = fedpav.base('centralised', ('fedpav',))
  config.data.client_split = 'centralised'
  config.optim.reset_each_round = False
  return parsing.recipe(arg, config, standalone.PRESETS)
