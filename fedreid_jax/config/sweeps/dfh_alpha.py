"""Dirichlet law of the novel domain: DFH table 4.

  python -m launchers.sweep --sweep=dfh_alpha

One number a source domain, in the order of the clients' names: the first row
leans towards none, the others towards one each.
"""

from fedreid_jax.config import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='DFH, parameters of the Dirichlet law',
    recipes=('configs/dfh.py',),
    grid={
      'dfh.alpha': (
        (1.0, 1.0, 1.0),
        (2.0, 1.0, 1.0),
        (1.0, 2.0, 1.0),
        (1.0, 1.0, 2.0),
      )
    },
  )
