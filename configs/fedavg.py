"""FedAvg (McMahan et al., AISTATS 2017): the classifier is shared as well.

It needs one label space: `data.labels` 'concat' (DFH tables), 'max' (Wu & Gong)
or 'global'. Table rows: DFH table 1, Wu & Gong table 2, L2RW table 1.

  fedreid train fedavg[:smoke|nine]
  fedreid train fedavg:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('fedavg', ('fedavg',))
  given.apply_preset(c)
  c.data.labels = 'concat'
  return given.override(c)
