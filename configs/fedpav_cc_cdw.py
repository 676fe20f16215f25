"""FedPav + client clustering + cosine distance weight (FedReIDBench, journal).

Table rows: journal version, tables 4 and 5.

  fedreid train fedpav_cc_cdw[:smoke|nine]
  fedreid train fedpav_cc_cdw:photos \
    --config.data.root=DIR --config.data.public=NAME
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedpav_cc_cdw', ('fedpav', 'client_clustering', 'cdw'))
  given.apply_preset(c)
  c.data.public = presets.PUBLIC[given.preset]
  return given.override(c)
