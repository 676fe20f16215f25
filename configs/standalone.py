"""Standalone training: clients train independently in one run.

This is a reference of FedReIDBench (journal version, table 3). Optimisers keep
their momentum; `paper` has 100 epochs, and the rate decreases every 40.

  fedreid train standalone[:smoke|nine]
  fedreid train standalone:photos,data.root=DIR
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  given = parsing.argument(arg, presets.ALONE)
  c = presets.base('standalone', ('standalone',))
  given.apply_preset(c)
  c.optim.reset_each_round = False
  return given.override(c)
