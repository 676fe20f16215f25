"""FedATT (Ji et al., IJCNN 2019): attentive aggregation of all parameters.

Table rows: Wu & Gong table 2, with the 'max' label space.

  fedreid train fedatt[:smoke|nine]
  fedreid train fedatt:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedatt', ('fedavg', 'fedatt'))
  given.apply_preset(c)
  c.data.labels = 'max'
  return given.override(c)
