"""Claims of Wu and Gong's FedReID (P4)."""

from fedreid_jax.config.claims.declare import ROUTES, Arm, Claim

PAPER = 'Wu and Gong, AAAI 2021'
EXPERT = Arm('fedreid:trial')

CLAIMS = (
  Claim(
    'expert',
    f'{PAPER}, table 4',
    'The local expert improves the averaged model.',
    'mAP and rank-1 on unseen data sets, see config/tables/fedreid.py',
    EXPERT,
    Arm('fedreid:trial,variant=plain'),
    ROUTES,
    first=True,
  ),
  Claim(
    'one_model',
    f'{PAPER}, table 3',
    'One aggregated model beats the features of models trained apart.',
    'see config/tables/fedreid.py',
    EXPERT,
    Arm('standalone:trial,evaluation.ensemble=("concat",)', 'concat'),
    ROUTES,
  ),
  Claim(
    'noise',
    f'{PAPER}, figure 3',
    'White noise of 5e-4 costs nothing.',
    'a figure',
    Arm('fedreid:trial,noise=single,noise.beta=5e-4'),
    EXPERT,
    ROUTES,
    claimed='equal',
    margin=1.0,
  ),
)
