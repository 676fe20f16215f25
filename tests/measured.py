"""What a tracker receives in a short run, shared by tests."""

import numpy as np

from fedreid_jax.training.trackers import Measured

PICTURE = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)


def write(writer, *rounds, client='ash'):
  """Writes numbers of rounds, which depend on the round."""
  for round_ in rounds:
    values = {
      'train/loss': 1 / round_,
      f'client/{client}/loss': 2.0 * round_,
    }
    writer.write(Measured('round', round_, values))
