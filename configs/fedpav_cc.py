"""FedPav + client clustering (FedReIDBench, journal version).

Table rows: journal version, table 4 (local models, rank-1 against standalone).
A run saves one model per cluster; `clusters` in results.json lists its clients.

  fedreid train fedpav_cc[:smoke|nine]
  fedreid train fedpav_cc:photos,data.root=DIR \
    --config.data.public=NAME
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedpav_cc', ('fedpav', 'client_clustering'))
  given.apply_preset(c)
  c.data.public = presets.PUBLIC[given.preset]
  return given.override(c)
