"""FedDyn (Acar et al., ICLR 2021) on FedPav's split of the model.

No table of the papers contains it; it is a common method of federated
libraries.

  fedreid train feddyn[:smoke|nine]
  fedreid train feddyn:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('feddyn', ('fedpav', 'feddyn'))
  given.apply_preset(c)
  return given.override(c)
