"""Robust aggregation: rules that few wrong uploads cannot move far.

The default is the median of every coordinate on FedPav's split of the model.
The others are `robust.rule=trimmed|krum|multikrum|rfa|bound`, and `robust.f` is
the number of wrong uploads in a round; krum and multikrum need 2 f + 3 clients
in a round and the others 2 f + 1. No table of the papers contains it.

  fedreid train robust[:smoke|nine]
  fedreid train robust:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.FEDERATED)
  c = presets.base('robust', ('fedpav', 'robust'))
  given.apply_preset(c)
  return given.override(c)
