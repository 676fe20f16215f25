"""Claims of L2RW (P3)."""

from fedreid_jax.config.claims.declare import Arm, Claim, Route, route

PAPER = 'L2RW'
CAMERAS = (Route('cameras', ()),)
DPPT = Arm('dppt:trial,local=dppt')
KINDS = 'cameras=4,infrared=2'
ENTITIES = (
  route(
    f'plaza:{KINDS} campus:{KINDS}',
    f'station:{KINDS} mall:{KINDS} market:{KINDS}',
  ),
  route(
    f'harbour:{KINDS} alley:{KINDS}',
    f'plaza:{KINDS} campus:{KINDS} arcade:{KINDS}',
  ),
)
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
  Claim(
    'entities',
    f'{PAPER}, table 2',
    'Independent entities with DPPT beat shared ones with ERM.',
    'rank-1 11.3 against 8.6 on SYSU-MM01',
    Arm('dppt:trial,protocol=ei'),
    Arm('erm:trial'),
    ENTITIES,
  ),
)
