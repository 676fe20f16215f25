"""SNR + DFH: style normalisation and hallucinated domains together.

  python -m launchers.main --config=configs/snr_dfh.py[:smoke|nine]
  python -m launchers.main --config=configs/snr_dfh.py:folder,data.root=DIR

Table rows: DFH table 1, SNR + DFH, in configs/tables. The loss of SNR is on the
original batch only. What was measured here is in docs/results.md.
"""

from configs import dfh, snr
from fedreid_jax.config import parsing


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,loss=entropy][,space=b][,...]`."""
  arg, loss = parsing.take_argument(arg, 'loss', 'distance')
  arg, space = parsing.take_argument(arg, 'space', 'f')
  config = snr.base('snr_dfh', ('fedpav', 'snr', 'dfh'), loss, space)
  return parsing.recipe(arg, config, dfh.PRESETS)
