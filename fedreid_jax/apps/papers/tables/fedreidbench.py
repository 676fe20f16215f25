"""The tables and claims of FedReIDBench (MM 2020, and what its journal shares).

  fedreid table --table=fedreidbench/table3 --preset=paper --root=DIR

There are tables 2 to 8, and the figures with numbers. Table 1 has counts of
images, which `fedreid data doctor` shows. Figures 9 and 10 are figures 4 and 5
in mAP; figures 11 and 12 show figure 7 on all data sets, and figures 13 and 14
show figure 8.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedreid_jax.apps.papers.sweeps import SWEEPS
from fedreid_jax.apps.papers.tables.declare import (
  ALL,
  CURVE,
  ROUTES,
  Arm,
  Claim,
  NearClaim,
  Route,
  Row,
  Scores,
  SideClaim,
  Table,
  of_sweep,
  read,
  route,
)

# Targets in the papers' order. The papers write iLIDS-VID, but their counts of
# images are those of QMUL i-LIDS.
SETS = tuple(
  """
  msmt17 dukemtmc market1501 cuhk03-np prid2011 cuhk01 viper 3dpes qmul-ilids
  """.split()
)
METRICS = ('rank1', 'rank5', 'rank10', 'mAP')
# Of the presets of the recipes, `paper` and `nine` have the nine clients.
PRESETS = {'synthetic': 'nine', 'smoke': 'nine'}
# Changes that reduce the preset `nine` to the size of `smoke`.
SMOKE = tuple(
  """
  rounds=2 data.height=32 data.width=16 data.target_identities=12
  model.features=(16,32) evaluation.every=2
  """.split()
)


def nine(id: str, title: str, rows: Sequence[Row], **more: Any) -> Table:
  """A table of the nine clients; `more` are fields of `Table`."""
  more = {'kind': 'best_three', 'presets': PRESETS} | more
  return Table(id, title, rows, {'smoke': SMOKE}, **more)


def row(
  label: str, recipe: str, published: Scores | None = None, *pairs: str, **more
) -> Row:
  """A row; `pairs` are changes, `more` fields of `Row`."""
  return Row(
    label, f'configs/{recipe}.py', {ALL: pairs}, published or {}, **more
  )


def standalone(published: Scores) -> Row:
  """The row of clients that train alone."""
  return row('Standalone', 'standalone', published, model='local')


# A control that the papers do not have: public images update the running
# statistics of the server's model, but not its weights.
KD_CONTROL = row('KD, rate 0', 'fedpav_kd', None, 'kd.lr=0.0')


def one_set(id: str, scored: Mapping[str, Scores]) -> Table:
  """A table of one data set, from scores by target, client split and metric."""
  # With as many cameras as the data set, and so as many clients by camera.
  stand_in = {'market1501': 'station:cameras=6', 'cuhk03-np': 'mall:cameras=2'}
  rows = []
  for target, scenarios in scored.items():
    domains = {'paper': (target,), 'synthetic': (stand_in[target],)}
    own = {
      preset: (f'data.sources={name!r}', f'data.targets={name!r}')
      for preset, name in domains.items()
    }
    for scenario, scores in scenarios.items():
      recipe = 'centralised' if scenario == 'centralised' else 'fedpav'
      rows.append(
        Row(
          scenario,
          f'configs/{recipe}.py',
          {ALL: (f'data.client_split={scenario}',), **own},
          {target: scores},
        )
      )
  # Clients and tests are other persons of the same domain.
  other = 'data.allow_overlap=True'
  return Table(
    *(id, 'one data set by camera, by identity, in one place'),
    rows,
    {ALL: (other, 'components=("fedpav",)')},
    kind='best_three',
  )


TABLE2 = {
  'market1501': """
    centralised  88.93 95.34 96.88 72.62
    by_identity  85.69 93.44 95.81 66.36
    by_camera    61.13 74.88 80.55 36.57
  """,
  'cuhk03-np': """
    centralised  49.29 68.86 76.57 44.52
    by_identity  51.71 69.50 76.79 47.39
    by_camera    11.21 19.14 25.71 11.11
  """,
}
# Increases of rank-1 over training alone: FedPav, CDW, CDW with local models.
TABLE3 = """
  msmt17       -8.55  -6.21  +4.01
  dukemtmc     -5.77  -2.90  +1.34
  market1501   -5.51  -3.79  +1.43
  cuhk03-np   -17.58 -15.05  +1.21
  prid2011    -17.33 -13.67  +7.33
  cuhk01       +4.32  +9.30 +13.75
  viper       +20.57 +20.36 +25.95
  3dpes        +3.79  +7.31 +16.26
  qmul-ilids  +27.89 +28.57 +30.27
"""
TABLE4 = """
  msmt17      41.01 53.79 59.02 21.49
  dukemtmc    74.30 85.58 89.36 56.92
  market1501  83.42 93.29 95.86 60.68
  cuhk03-np   31.71 49.48 59.86 27.89
  prid2011    37.67 55.33 65.00 42.15
  cuhk01      73.35 88.07 92.04 69.90
  viper       48.10 66.24 76.16 52.58
  3dpes       69.24 85.23 91.06 58.95
  qmul-ilids  79.93 94.90 97.96 76.44
"""
TABLE5 = """
  msmt17      40.63 53.08 58.40 21.34
  dukemtmc    75.78 86.49 89.59 56.93
  market1501  80.38 91.26 94.12 56.01
  cuhk03-np   26.64 44.55 54.55 23.96
  prid2011    33.00 56.67 64.33 38.45
  cuhk01      70.16 86.93 91.29 66.76
  viper       45.68 65.61 72.78 50.30
  3dpes       67.07 83.74 88.08 56.83
  qmul-ilids  78.23 92.18 97.28 73.45
"""
TABLE6 = """
  msmt17      36.58 49.12 54.46 17.97
  dukemtmc    74.27 85.83 89.32 55.14
  market1501  75.50 88.32 91.95 49.66
  cuhk03-np   23.81 40.67 50.52 21.34
  prid2011    33.00 59.33 68.33 39.03
  cuhk01      65.09 84.57 90.05 62.16
  viper       41.24 61.18 68.99 45.97
  3dpes       72.09 87.94 91.60 61.19
  qmul-ilids  77.21 90.48 94.22 71.32
"""
TABLE7 = """
  msmt17      49.56 63.06 67.85 28.66
  dukemtmc    80.07 89.45 92.19 62.41
  market1501  88.93 95.34 96.88 72.62
  cuhk03-np   49.29 68.86 76.57 44.52
  prid2011    55.00 75.00 84.00 59.35
  cuhk01      69.03 87.04 91.87 64.73
  viper       27.53 51.27 62.97 33.27
  3dpes       65.45 83.33 87.80 51.83
  qmul-ilids  52.04 68.37 85.71 45.13
"""
TABLE8 = """
  msmt17      43.35 55.85 61.26 22.86
  dukemtmc    77.17 87.30 90.47 60.53
  market1501  85.14 94.29 96.51 62.97
  cuhk03-np   34.24 54.17 63.14 30.48
  prid2011    41.33 62.33 72.67 46.59
  cuhk01      78.33 91.53 95.03 74.25
  viper       47.89 66.46 75    52.33
  3dpes       72.76 88.35 91.06 63.79
  qmul-ilids  80.61 93.88 96.60 75.80
"""


def _increase(column: str) -> dict[str, dict[str, float]]:
  scores = read(TABLE3, ('FedPav', 'CDW', 'CDW local'))
  return {t: {'rank1 - baseline': x[column]} for t, x in scores.items()}


def _batch(number: int, batch: int, text: str) -> Table:
  own = row(f'B={batch}', 'fedpav', read(text, METRICS), f'local.batch={batch}')
  title = f'FedPav, {batch} images a step'
  return nine(f'fedreidbench/table{number}', title, [own])


TABLES = (
  one_set(
    'fedreidbench/table2', {t: read(x, METRICS) for t, x in TABLE2.items()}
  ),
  nine(
    *('fedreidbench/table3', 'increase over training alone'),
    [
      standalone(read(TABLE7, METRICS)),
      row('FedPav', 'fedpav', _increase('FedPav')),
      row('CDW', 'fedpav_cdw', _increase('CDW')),
      row('CDW local', 'fedpav_cdw', _increase('CDW local'), model='local'),
    ],
    baseline='Standalone',
  ),
  _batch(4, 32, TABLE4),
  _batch(5, 64, TABLE5),
  _batch(6, 128, TABLE6),
  nine(
    'fedreidbench/table7', 'training alone', [standalone(read(TABLE7, METRICS))]
  ),
  nine(
    *('fedreidbench/table8', 'FedPav with weights by cosine distance'),
    [row('CDW', 'fedpav_cdw', read(TABLE8, METRICS))],
  ),
  nine(
    *('fedreidbench/figure4', 'images of a step'),
    of_sweep(SWEEPS['fedreidbench_batch']),
    note='Published numbers: tables 4 to 6.',
    picture='bars',
  ),
  nine(
    *('fedreidbench/figure5', 'epochs of a round'),
    of_sweep(SWEEPS['fedreidbench_epochs']),
    picture='bars',
  ),
  nine(
    *('fedreidbench/figure6', 'federated and alone'),
    [
      standalone({}),
      row('FedPav', 'fedpav'),
      row('FedPav local', 'fedpav', model='local'),
    ],
    baseline='Standalone',
    picture='bars',
  ),
  nine(
    *('fedreidbench/figure7', 'convergence with distillation, every 10 rounds'),
    [row('FedPav', 'fedpav'), row('KD', 'fedpav_kd'), KD_CONTROL],
    note=CURVE,
    picture='curves',
  ),
  nine(
    'fedreidbench/figure8',
    'convergence with distillation and weights, every 10 rounds',
    [row('FedPav', 'fedpav'), row('KD+CDW', 'fedpav_kd_cdw')],
    note=CURVE,
    picture='curves',
  ),
)


CONFERENCE = 'FedReIDBench, ACM MM 2020'
JOURNAL = 'FedReIDBench, TOMM 2023'
FEDPAV = Arm('fedpav:imagenet')
# Nine clients, each tested on other persons of its training domain.
NINE = (Route('nine', ()),)
GLOBAL = Arm('fedpav:nine_imagenet')
OWN = Arm('fedpav:nine_imagenet', 'client')
CDW = Arm('fedpav_cdw:nine_imagenet', 'client')
ALONE = Arm('standalone:nine_imagenet', 'client')
LARGE = ('plaza', 'campus', 'station', 'park', 'market')
INFRARED = 'cameras=0,infrared=4'
# Six clients, each tested on other persons of its training domain: three
# domains of visible and three of infrared cameras, and six of visible cameras.
GROUPS = (
  f'plaza campus station mall:{INFRARED} park:{INFRARED} market:{INFRARED}'
)
ALIKE = 'plaza campus station mall park market'
OVERLAP = 'data.allow_overlap=True'
# One domain is divided among four clients.
DIVIDED = tuple(
  route(source, targets, 'data.num_clients=4')
  for source, targets in (
    ('plaza', 'mall park market'),
    ('campus', 'harbour alley arcade'),
    ('station', 'mall harbour garden'),
  )
)


# Methods that the papers find near their baseline: source, published numbers,
# recipe. Numbers of the journal are increases of local models over training
# alone, means of the nine data sets in table 4.
NEAR = {
  'fedprox': (
    f'{JOURNAL}, table 4',
    'rank-1 over training alone +7.9 against +6.8',
    'fedprox:imagenet',
  ),
  'moon': (
    'L2RW, table 1',
    "mAP 29.54, 21.54, 32.34 against FedAvg's 29.98, 21.05, 33.52",
    'moon:imagenet',
  ),
  'scaffold': (
    'the paper of the method',
    'no figure for persons',
    'scaffold:imagenet',
  ),
  'fedatt': (
    'Wu and Gong, AAAI 2021, table 2',
    "rank-1 40.2, 61.3 against FedAvg's 41.0, 65.2",
    'fedatt:imagenet,data.labels=concat',
  ),
}


def _near(name: str, title: str) -> Claim:
  source, published, recipe = NEAR[name]
  return NearClaim(
    *(name, source),
    f'{title} is near FedPav.',
    published,
    *(Arm(recipe), FEDPAV, ROUTES),
  )


CLAIMS = (
  Claim(
    *('federation', 'DFH, table 1'),
    'FedPav beats every single source on unseen domains.',
    'mAP 62.6, 25.4, 22.5 against 49.8, 23.3, 21.6 of the best source',
    *(FEDPAV, Arm('standalone:imagenet', 'best_client'), ROUTES),
    first=True,
  ),
  Claim(
    *('local', f'{JOURNAL}, table 3'),
    "Clients' own models beat the global one.",
    'rank-1 66.5 against 59.9, means of nine data sets; better on all',
    *(OWN, GLOBAL, NINE),
    first=True,
  ),
  Claim(
    *('local_or_alone', f'{CONFERENCE}, table 3'),
    "CDW's own models beat training alone.",
    'rank-1 +11.3, mean of nine data sets; better on all',
    *(CDW, ALONE, NINE),
    first=True,
  ),
  Claim(
    *('small_clients', f'{JOURNAL}, table 3'),
    'Small clients gain more than large ones.',
    'rank-1 over training alone +21.0 on four small data sets, -4.6 on five '
    'large ones',
    *(OWN, ALONE, NINE),
    minus=LARGE,
  ),
  Claim(
    *('cdw', f'{JOURNAL}, table 4'),
    'Weights by cosine distance beat weights by size.',
    'rank-1 over training alone +11.3 against +6.8, means of nine data sets',
    *(CDW, OWN, NINE),
  ),
  SideClaim(
    *('upper_bound', f'{JOURNAL}, table 3'),
    'All images in one place beat FedPav.',
    'rank-1 76.9 against 59.9, means of nine data sets; better on all',
    *(Arm('centralised:nine_imagenet'), GLOBAL, NINE),
  ),
  Claim(
    *('kd', f'{JOURNAL}, section 5.2'),
    'Distillation to the server improves the global model.',
    'a figure',
    *(Arm('fedpav_kd:imagenet'), FEDPAV, ROUTES),
  ),
  Claim(
    *('kd_cdw', f'{CONFERENCE}, section 5.3'),
    'Both together improve the global model.',
    'a figure',
    *(Arm('fedpav_kd_cdw:imagenet'), FEDPAV, ROUTES),
  ),
  Claim(
    *('groups', f'{JOURNAL}, table 4'),
    'Clusters help clients that form two groups.',
    'rank-1 over training alone +2.2 against -4.6 on five large data sets, '
    '+7.1 against +21.0 on four small ones',
    *(Arm('fedpav_cc:nine_imagenet', 'client'), OWN),
    (route(GROUPS, GROUPS, OVERLAP),),
  ),
  Claim(
    *('no_groups', f'{JOURNAL}, section 5.1'),
    'Clusters do not harm clients without groups.',
    'no figure',
    *(Arm('fedpav_cc:nine_imagenet', 'client'), OWN),
    (route(ALIKE, ALIKE, OVERLAP),),
    claimed='equal',
    margin=3.0,
  ),
  Claim(
    *('by_camera', f'{JOURNAL}, table 2'),
    'Clients by identity beat clients by camera.',
    'mAP 47.39, 66.36 against 11.11, 36.57',
    Arm('fedpav:imagenet,data.client_split=by_identity'),
    *(Arm('fedpav:imagenet,data.client_split=by_camera'), DIVIDED),
  ),
  _near('fedprox', 'FedProx'),
  # Where every client takes as many steps, FedNova is FedPav: the nine clients
  # differ in their numbers of images.
  NearClaim(
    *('fednova', f'{JOURNAL}, table 4'),
    'FedNova is near FedPav with unequal clients.',
    'rank-1 over training alone +6.5 against +6.8',
    *(Arm('fednova:nine_imagenet', 'client'), OWN, NINE),
  ),
  _near('moon', 'MOON'),
  _near('scaffold', 'SCAFFOLD'),
  _near('fedatt', 'FedATT'),
)
