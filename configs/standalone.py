"""Standalone training: every client alone, in one run, nothing travels.

The reference of FedReIDBench (journal version, table 3). Optimisers keep their
momentum; `paper` is 100 epochs with the rate falling every 40.

  python -m launchers.main --config=configs/standalone.py[:smoke|nine]
  python -m launchers.main --config=configs/standalone.py:folder,data.root=DIR
"""

from configs import fedpav
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,key=value...]`."""
  config = fedpav.base('standalone', ('standalone',))
  config.optim.reset_each_round = False
  return parsing.recipe(arg, config, PRESETS)


def paper(c) -> None:
  """The published setting; the released code's rate falls every 40 epochs."""
  fedpav.paper(c)
  c.rounds = 100
  c.optim.schedule, c.optim.milestones = 'step', (40, 80)


PRESETS = fedpav.PRESETS | {'paper': paper}
