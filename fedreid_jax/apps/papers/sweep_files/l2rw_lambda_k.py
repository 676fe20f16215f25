"""Weight and feature bank of DPPT, camera independence: L2RW figure 4.

  fedreid sweep --sweep=l2rw_lambda_k --workdir=DIR
  fedreid visualize --workdir=DIR --what=sweep

The second command draws mAP and rank-1 over both. `--arg=paper,data.root=ROOT`
runs the sweep on SYSU-MM01 as in the paper.

Figure 4a varies the weight at K = 4, figure 4b varies K at a weight of 1. The
paper does not state the values on the axes; they are chosen around its
defaults.
"""

from fedreid_jax.apps.papers import grid

LAMBDAS = (0.1, 0.5, 1.0, 1.5, 2.0)
SIZES = (1, 2, 4, 6, 8)


def get_sweep() -> grid.Sweep:
  """Returns the sweep."""
  # The point of both defaults, (1.0, 4), is in both figures and runs once.
  pairs = [(lam, 4) for lam in LAMBDAS] + [(1.0, k) for k in SIZES if k != 4]
  return grid.Sweep(
    about='DPPT, weight of the rectification and features of a centre',
    recipes=('configs/dppt.py',),
    grid={'dppt.lam+dppt.k': pairs},
  )
