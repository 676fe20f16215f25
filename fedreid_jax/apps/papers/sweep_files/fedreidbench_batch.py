"""Images of a step in FedPav: FedReIDBench (MM 2020) figures 4 and 9.

  fedreid sweep --sweep=fedreidbench_batch

Figure 2a of the journal version is the same. The numbers are in tables 4 to 6
of the paper: `fedreid table --table=fedreidbench/table4`, 5 and 6.
"""

from fedreid_jax.apps.papers import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='FedPav, images of a step',
    recipes=('configs/fedpav.py',),
    grid={'local.batch': (32, 64, 128)},
  )
