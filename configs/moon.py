"""MOON (Li et al., CVPR 2021) on FedPav's split of the model.

Table rows: L2RW table 1, where the classifier is shared as well.

  fedreid train moon[:smoke|nine]
  fedreid train moon:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('moon', ('fedpav', 'moon'))
  given.apply_preset(c)
  return given.override(c)
