"""Images of a step in FedPav: FedReIDBench (MM 2020) figures 4 and 9.

  python -m launchers.sweep --sweep=configs/sweeps/p1_batch.py

The journal version shows it again in figure 2a. The paper has the numbers in
tables 4 to 6: `p1/table4`, `p1/table5`, `p1/table6` of `launchers.table`.
"""

from configs.sweeps import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='FedPav, images of a step',
    recipes=('configs/fedpav.py',),
    grid={'local.batch': (32, 64, 128)},
  )
