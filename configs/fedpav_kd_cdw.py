"""FedPav + distillation + cosine distance weight (FedReIDBench).

Table rows: ACM MM 2020, figures 8, 13, 14; journal version, figure 4, table 5.

  fedreid train fedpav_kd_cdw[:smoke|nine]
  fedreid train fedpav_kd_cdw:photos \
    --config.data.root=DIR --config.data.public=NAME
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedpav_kd_cdw', ('fedpav', 'cdw', 'kd'))
  given.apply_preset(c)
  c.data.public = presets.PUBLIC[given.preset]
  return given.override(c)
