"""Tables 2 to 8, and figures with numbers of FedReIDBench (MM 2020).

  fedreid table --table=fedreidbench/table3 \\
    --preset=paper --root=DIR

Table 1 has counts of images, which `fedreid data doctor` shows. Figures 9 and
10 are figures 4 and 5 in mAP; figures 11 and 12 show figure 7 on all data sets,
and figures 13 and 14 show figure 8.
"""

from fedreid_jax.apps.papers.sweep_files import (
  fedreidbench_batch,
  fedreidbench_epochs,
)
from fedreid_jax.apps.papers.tables.declare import CURVE, Table, of_sweep, read
from fedreid_jax.apps.papers.tables.fedreidbench_rows import (
  KD_CONTROL,
  METRICS,
  nine,
  one_set,
  row,
  standalone,
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
    'fedreidbench/table3',
    'increase over training alone',
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
    'fedreidbench/table8',
    'FedPav with weights by cosine distance',
    [row('CDW', 'fedpav_cdw', read(TABLE8, METRICS))],
  ),
  nine(
    'fedreidbench/figure4',
    'images of a step',
    of_sweep(fedreidbench_batch.get_sweep()),
    note='Published numbers: tables 4 to 6.',
  ),
  nine(
    'fedreidbench/figure5',
    'epochs of a round',
    of_sweep(fedreidbench_epochs.get_sweep()),
  ),
  nine(
    'fedreidbench/figure6',
    'federated and alone',
    [
      standalone({}),
      row('FedPav', 'fedpav'),
      row('FedPav local', 'fedpav', model='local'),
    ],
    baseline='Standalone',
  ),
  nine(
    'fedreidbench/figure7',
    'convergence with distillation, every 10 rounds',
    [row('FedPav', 'fedpav'), row('KD', 'fedpav_kd'), KD_CONTROL],
    note=CURVE,
  ),
  nine(
    'fedreidbench/figure8',
    'convergence with distillation and weights, every 10 rounds',
    [row('FedPav', 'fedpav'), row('KD+CDW', 'fedpav_kd_cdw')],
    note=CURVE,
  ),
)
