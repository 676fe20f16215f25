"""Dirichlet distribution of the novel domain: DFH table 4.

  fedreid sweep --sweep=dfh_alpha

The distribution has one parameter per source domain, in the order of the
clients' names. The first row favours no domain, and each of the others favours
one.
"""

from fedreid_jax.apps.papers import grid


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
