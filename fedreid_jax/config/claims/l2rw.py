"""Claims of L2RW (P3)."""

from fedreid_jax.config.claims.declare import Arm, Claim, Route

PAPER = 'L2RW'
CAMERAS = (Route('cameras', ()),)
DPPT = Arm('dppt:trial,local=dppt')
BASE = Arm('dppt:trial,local=base')

CLAIMS = (
  Claim(
    'dppt',
    f'{PAPER}, table 1',
    'DPPT improves FedAvg where every camera is a client.',
    'see config/tables/l2rw_numbers.py',
    DPPT,
    BASE,
    CAMERAS,
    first=True,
  ),
  Claim(
    'memory',
    f'{PAPER}, table 3',
    'The memory of prototypes improves channel exchange.',
    'see config/tables/l2rw_numbers.py',
    DPPT,
    Arm('dppt:trial,local=ca'),
    CAMERAS,
  ),
)
