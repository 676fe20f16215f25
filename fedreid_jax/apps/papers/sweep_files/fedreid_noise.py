"""Noise on the model: Wu & Gong (AAAI 2021) figure 3.

  fedreid sweep --sweep=fedreid_noise

Noise is added to the server's model only ('single'), or to every download as
well ('double'). The paper states only 5e-4; the other values are chosen around
it. Noise without clipping gives no guarantee of privacy.
"""

from fedreid_jax.apps.papers import grid


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  return grid.Sweep(
    about='FedReID, noise on the model',
    recipes=(
      'configs/fedreid.py:noise=single',
      'configs/fedreid.py:noise=double',
    ),
    grid={'noise.beta': (0.0, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3)},
  )
