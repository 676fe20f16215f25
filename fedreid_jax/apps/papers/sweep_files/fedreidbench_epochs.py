"""Local epochs in FedPav, 300 in all: FedReIDBench (MM 2020) figures 5 and 10.

  fedreid sweep --sweep=fedreidbench_epochs

The journal version has the same figure 2b. Fewer rounds need less
communication, shown in the table's column MB.
"""

from fedreid_jax.apps.papers import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='FedPav, epochs of a round and rounds',
    recipes=('configs/fedpav.py',),
    grid={'local.epochs+rounds': ((1, 300), (5, 60), (10, 30))},
  )
