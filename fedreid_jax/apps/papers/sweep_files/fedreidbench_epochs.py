"""Local epochs in FedPav, 300 in all: FedReIDBench (MM 2020) figures 5 and 10.

  fedreid sweep --sweep=fedreidbench_epochs

Figure 2b of the journal version is the same. Fewer rounds need less
communication, which the column MB of the table shows.
"""

from fedreid_jax.apps.papers import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='FedPav, epochs of a round and rounds',
    recipes=('configs/fedpav.py',),
    grid={'local.epochs+rounds': ((1, 300), (5, 60), (10, 30))},
  )
