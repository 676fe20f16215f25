"""Sweeps of the papers' figures: `fedreid sweep --sweep=NAME`.

A paper that draws a figure without stating its values has values here that are
chosen around its defaults.
"""

from fedreid_jax.apps.papers.grid import Sweep

SWEEPS = {
  # DFH, table 4: a parameter for each source, in the order of the clients'
  # names. The first row favours no domain, the others one each.
  'dfh_alpha': Sweep(
    'DFH, parameters of the Dirichlet law',
    ('configs/dfh.py',),
    {
      'dfh.alpha': (
        (1.0, 1.0, 1.0),
        (2.0, 1.0, 1.0),
        (1.0, 2.0, 1.0),
        (1.0, 1.0, 2.0),
      )
    },
  ),
  'dfh_lambda': Sweep(  # DFH, figure 3
    'DFH, weight of the hallucinated losses',
    ('configs/dfh.py',),
    {'dfh.lam': (2.0, 3.0, 4.0, 5.0, 6.0)},
  ),
  # Wu & Gong (AAAI 2021), figures 4b and 4c: the fraction of clients at one
  # epoch, which the paper states, and the epochs with all clients.
  'fedreid_fraction_epochs': Sweep(
    'FedReID, share of clients and epochs of a round',
    ('configs/fedreid.py',),
    {
      'fraction+local.epochs': (
        *((0.25, 1), (0.5, 1), (1.0, 1)),
        *((1.0, 5), (1.0, 10)),
      )
    },
  ),
  # Wu & Gong, figure 3: noise on the server's model only, or on every download
  # as well. The paper states 5e-4 only. Noise without clipping gives no
  # guarantee of privacy.
  'fedreid_noise': Sweep(
    'FedReID, noise on the model',
    ('configs/fedreid.py:noise=single', 'configs/fedreid.py:noise=double'),
    {'noise.beta': (0.0, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3)},
  ),
  # FedReIDBench (MM 2020), figures 4 and 9, and its journal version, figure 2a.
  # The numbers are in tables 4 to 6.
  'fedreidbench_batch': Sweep(
    'FedPav, images of a step',
    ('configs/fedpav.py',),
    {'local.batch': (32, 64, 128)},
  ),
  # FedReIDBench, figures 5 and 10, journal version, figure 2b: 300 epochs in
  # all. Fewer rounds need less communication, see the column MB.
  'fedreidbench_epochs': Sweep(
    'FedPav, epochs of a round and rounds',
    ('configs/fedpav.py',),
    {'local.epochs+rounds': ((1, 300), (5, 60), (10, 30))},
  ),
  # L2RW, figure 4: the weight at K = 4, and K at a weight of 1. The point of
  # both defaults, (1.0, 4), is in both figures and runs once. `fedreid
  # visualize --what=sweep` draws it; `--arg=paper,data.root=ROOT` runs it on
  # SYSU-MM01 as in the paper.
  'l2rw_lambda_k': Sweep(
    'DPPT, weight of the rectification and features of a centre',
    ('configs/dppt.py',),
    {
      'dppt.lam+dppt.k': (
        *((lam, 4) for lam in (0.1, 0.5, 1.0, 1.5, 2.0)),
        *((1.0, k) for k in (1, 2, 6, 8)),
      )
    },
  ),
}
