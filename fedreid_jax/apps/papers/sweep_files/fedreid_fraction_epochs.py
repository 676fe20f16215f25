"""Clients and epochs of a round: Wu & Gong (AAAI 2021) figures 4b and 4c.

  fedreid sweep --sweep=fedreid_fraction_epochs

Figure 4b varies the fraction of clients at one epoch, figure 4c the epochs with
all clients. The paper states the fractions; the epochs are chosen here.
"""

from fedreid_jax.apps.papers import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='FedReID, share of clients and epochs of a round',
    recipes=('configs/fedreid.py',),
    grid={
      'fraction+local.epochs': (
        (0.25, 1),
        (0.5, 1),
        (1.0, 1),
        (1.0, 5),
        (1.0, 10),
      )
    },
  )
