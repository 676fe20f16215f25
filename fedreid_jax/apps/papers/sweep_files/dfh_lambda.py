"""Weight of the hallucinated losses: DFH figure 3.

fedreid sweep --sweep=dfh_lambda
"""

from fedreid_jax.apps.papers import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='DFH, weight of the hallucinated losses',
    recipes=('configs/dfh.py',),
    grid={'dfh.lam': (2.0, 3.0, 4.0, 5.0, 6.0)},
  )
