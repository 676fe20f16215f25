"""FedPav + cosine distance weight (FedReIDBench).

Table rows: ACM MM 2020, table 3; journal version, table 4 (local models, rank-1
against standalone).

  fedreid train fedpav_cdw[:smoke|nine]
  fedreid train fedpav_cdw:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedpav_cdw', ('fedpav', 'cdw'))
  given.apply_preset(c)
  return given.override(c)
