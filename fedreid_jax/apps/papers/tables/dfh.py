"""The tables and claims of DFH: tables 1 to 5 and figures 3, 4 and 6.

  fedreid table --table=dfh/table1 --preset=paper --root=DIR

Figure 5 is the picture of `fedreid invert`.
"""

from collections.abc import Sequence

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
  SideClaim,
  Table,
  of_sweep,
  read,
  route,
)
from fedreid_jax.config import schema

# Settings of all runs of the paper (section 4.1), for all recipes.
SETTING = {
  # All methods use the space of the pooled feature.
  ALL: tuple(
    """
    model.neck=none evaluation.feature=embedding loss.triplet=1.0
    loss.margin=0.5 local.sampler=pk optim.nesterov=False
    optim.reset_each_round=True
    """.split()
  ),
  'synthetic': ('local.batch=32', 'local.identities=8'),
  'paper': tuple(
    """
    data.source=datasets data.allow_overlap=False data.public=""
    data.height=256 data.width=128
    model.name=resnet50 model.last_stride=1 model.classifier_bias=False
    rounds=40 local.batch=64 local.identities=16 local.steps=200
    optim.lr=1e-3 optim.lr_multipliers=() optim.schedule=step
    optim.milestones=(20,30) optim.gamma=0.5
    augment.pad=10 augment.erase=0.5 augment.erase_fill=(0.485,0.456,0.406)
    evaluation.every=5 evaluation.protocol="" evaluation.metric=euclidean
    evaluation.flip=False
    """.split()
  ),
}
# Data set and its synthetic stand-in. Clients are sorted by name, and both
# lists have the same order, on which `dfh.alpha` depends.
DATA = {
  'C2': ('cuhk02', 'campus'),
  'C3': ('cuhk03:query=last', 'mall'),
  'M': ('market1501', 'plaza'),
  'MS': ('msmt17', 'station'),
}
METHODS: dict[str, tuple[str, ...]] = {  # recipe and its changes, by label
  'FedAvg': ('fedavg', 'components=("fedavg",)', 'data.labels=concat'),
  'FedPav': ('fedpav', 'components=("fedpav",)'),
  'FedReID': ('fedreid', f'fedpav.shared={schema.default().fedpav.shared}'),
  'SNR': ('snr',),
  'DFH': ('dfh',),
  'SNR+DFH': ('snr_dfh',),
  'no FH': ('fedpav', 'components=("fedpav",)'),
  'FH': ('dfh', 'dfh.novel=none'),
  'FH+DM': ('dfh', 'dfh.novel=dirichlet_mixup'),
  'FH+FM': ('dfh', 'dfh.novel=feature_mixup'),
  'FH+DH': ('dfh', 'dfh.novel=dirichlet'),
  'Cross-Entropy': ('dfh', 'dfh.loss=identity'),
  'Triplet': ('dfh', 'dfh.loss=triplet'),
}
METRICS = ('mAP', 'rank1')
ON_C2, ON_M, ON_C3 = 'MS+C3+M -> C2', 'MS+C2+C3 -> M', 'MS+M+C2 -> C3'
TABLE1 = """
  FedAvg   61.3 58.6  24.6 48.3  20.3 22.7
  FedPav   62.6 59.8  25.4 49.4  22.5 24.3
  FedReID  64.3 61.2  25.5 49.6  22.4 23.0
  SNR      67.7 65.1  28.3 53.2  26.0 29.1
  DFH      71.7 69.5  31.3 56.5  27.2 30.5
  SNR+DFH  72.4 70.2  33.2 58.8  31.1 33.5
"""
ALONE = """
  MS -> C2  43.8 41.8
  C3 -> C2  49.8 45.8
  M -> C2   42.4 37.9
  MS -> M   23.3 47.5
  C3 -> M   13.2 31.1
  C2 -> M   18.9 41.2
  MS -> C3  18.0 18.5
  C2 -> C3  21.6 22.5
  M -> C3   10.2 11.2
"""
TABLE2 = """
  no FH  25.4 49.4  22.5 24.3
  FH     28.4 51.7  24.1 25.7
  FH+DM  29.1 52.2  25.6 28.2
  FH+FM  27.8 50.5  23.6 25.3
  FH+DH  31.3 56.5  27.2 30.5
"""
TABLE3 = """
  FedPav  24.6 45.3  24.3 47.8  18.9 19.5  22.8 26.5
  SNR     26.3 49.7  28.2 53.6  20.9 22.0  23.2 22.4
  DFH     29.8 54.9  29.9 55.1  23.5 25.2  25.0 28.7
"""
TABLE4 = {  # the first word is the domain that the distribution favours
  ON_C3: 'none 27.2 30.5 \n M  26.9 25.5 \n MS 25.8 28.7 \n C2 26.4 30.2',
  ON_M: 'none 31.3 56.5 \n C3 30.7 55.3 \n MS 29.8 54.6 \n C2 30.2 54.8',
}
TABLE5 = """
  Cross-Entropy  20.4 23.8  26.3 50.6
  Triplet        27.2 30.5  31.3 56.5
"""


def _moved(route: str) -> dict[str, tuple[str, ...]]:
  """The changes for 'SOURCE+SOURCE -> TARGET'."""
  sources, _, target = route.partition(' -> ')
  return {
    preset: (
      f'data.sources={tuple(DATA[s][k] for s in sources.split("+"))!r}',
      f'data.targets={(DATA[target][k],)!r}',
    )
    for k, preset in enumerate(('paper', 'synthetic'))
  }


def _row(label: str, method: tuple[str, ...], route: str, scores) -> Row:
  target = DATA[route.partition(' -> ')[2]][0].partition(':')[0]
  recipe, *pairs = method
  changes = {**_moved(route), ALL: pairs}
  return Row(label, f'configs/{recipe}.py', changes, {target: scores})


def _rows(text: str, *routes: str, named: bool = False) -> list[Row]:
  """A row per method and route, from the numbers of `METRICS` per route."""
  # Labels that are `named` contain the route, for routes with the same target.
  columns = [f'{route}{metric}' for route in routes for metric in METRICS]
  return [
    _row(
      f'{label}, {route}' if named else label,
      METHODS[label],
      route,
      {metric: scores[f'{route}{metric}'] for metric in METRICS},
    )
    for label, scores in read(text, columns).items()
    for route in routes
  ]


def _leaning(route: str, text: str) -> list[Row]:
  """The rows of a route in table 4; 'none' has equal parameters."""
  # One number per client, in the order of the clients.
  sources = sorted(route.partition(' ->')[0].split('+'))
  return [
    _row(
      f'towards {domain}',
      ('dfh', f'dfh.alpha={tuple(1.0 + (s == domain) for s in sources)}'),
      route,
      scores,
    )
    for domain, scores in read(text, METRICS).items()
  ]


TWO = ('MS+C3 -> M', 'MS+C2 -> M', 'MS+M -> C3', 'MS+C2 -> C3')
ROWS = {
  'table1: methods, three sources and one': [
    *(
      _row(route, ('centralised',), route, scores)
      for route, scores in read(ALONE, METRICS).items()
    ),
    *_rows(TABLE1, ON_C2, ON_M, ON_C3),
  ],
  'table2: ablation of hallucination': _rows(TABLE2, ON_M, ON_C3),
  'table3: two source clients': _rows(TABLE3, *TWO, named=True),
  'table4: the Dirichlet law leans towards one domain': [
    row for route, text in TABLE4.items() for row in _leaning(route, text)
  ],
  'table5: loss on hallucinated features': _rows(TABLE5, ON_C3, ON_M),
  'figure3: weight of the hallucinated losses': [
    row
    for route in (ON_C3, ON_M)
    for row in of_sweep(SWEEPS['dfh_lambda'], _moved(route))
  ],
  'figure4: convergence, every 5 rounds': [
    _row('DFH', ('dfh', 'evaluation.every=5'), route, {})
    for route in (ON_C3, ON_M)
  ],
  'figure6: features hallucinated from MSMT17': [
    _row(label, METHODS[label], ON_C3, {})
    for label in ('FH+DM', 'FH+FM', 'FH+DH')
  ],
}
PICTURES = {'figure3': 'sweep', 'figure4': 'curves', 'figure6': 'tsne'}
TABLES = tuple(
  Table(
    *(f'dfh/{number}', title),
    rows,
    SETTING,
    note=CURVE if number == 'figure4' else '',
    picture=PICTURES.get(number, ''),
    source=dict(zip(('paper', 'synthetic'), DATA['MS'], strict=True)),
  )
  for (number, _, title), rows in (
    (name.partition(': '), rows) for name, rows in ROWS.items()
  )
)


DFH = Arm('dfh:rendered')
BASE = Arm('dfh:rendered,components=("fedpav",)')
HALLUCINATED = Arm('dfh:rendered,dfh.novel=none')
SNR = Arm('snr:rendered')
SOURCE = 'DFH, table'
TWO_SOURCES = (
  route('plaza campus', 'mall park market'),
  route('mall park', 'harbour alley arcade'),
)
# Rows of table 4: mAP on CUHK03 and Market-1501; equal weights have 27.2 and
# 31.3. Each row is tried on one route.
ALPHAS = {
  (1.0, 2.0, 1.0): '26.9, 30.7',
  (2.0, 1.0, 1.0): '25.8, 29.8',
  (1.0, 1.0, 2.0): '26.4, 30.2',
}


def _ablation(
  name: str, arm: Arm, changes: str, text: str, published: str, table: int = 2
) -> Claim:
  base = Arm(f'dfh:rendered,{changes}')
  return Claim(name, f'{SOURCE} {table}', text, published, arm, base, ROUTES)


def _alpha(
  alpha: tuple[float, ...], published: str, routes: Sequence[Route]
) -> Claim:
  digits = [f'{x:.0f}' for x in alpha]
  return NearClaim(
    *(f'dfh_alpha_{"".join(digits)}', f'{SOURCE} 4'),
    f'Weights {":".join(digits)} are near equal ones.',
    f'mAP {published} against 27.2, 31.3',
    *(Arm(f'dfh:rendered,dfh.alpha={alpha}'), DFH, routes),
  )


CLAIMS = (
  Claim(
    *('dfh', f'{SOURCE} 1'),
    'Hallucinated features improve FedPav on unseen domains.',
    "mAP 71.7, 31.3, 27.2 against FedPav's 62.6, 25.4, 22.5",
    *(DFH, BASE, ROUTES),
    first=True,
  ),
  Claim(
    *('snr_dfh', f'{SOURCE} 1'),
    'Hallucinated features improve SNR on unseen domains.',
    "mAP 72.4, 33.2, 31.1 against SNR's 67.7, 28.3, 26.0",
    *(Arm('snr_dfh:rendered'), SNR, ROUTES),
  ),
  Claim(
    *('dfh_or_snr', f'{SOURCE} 1'),
    'Hallucinated features beat SNR on unseen domains.',
    "mAP 71.7, 31.3, 27.2 against SNR's 67.7, 28.3, 26.0",
    *(DFH, SNR, ROUTES),
  ),
  _ablation(
    *('dfh_clients', HALLUCINATED, 'components=("fedpav",)'),
    'Features with statistics of the clients improve FedPav.',
    'mAP 28.4, 24.1 against 25.4, 22.5',
  ),
  _ablation(
    *('dfh_novel', DFH, 'dfh.novel=none'),
    'Novel domains improve the statistics of clients.',
    'mAP 31.3, 27.2 against 28.4, 24.1',
  ),
  _ablation(
    *('dfh_dirichlet_mixup', DFH, 'dfh.novel=dirichlet_mixup'),
    'Mixed statistics are better than mixed features (Dirichlet).',
    'mAP 31.3, 27.2 against 29.1, 25.6',
  ),
  _ablation(
    *('dfh_feature_mixup', DFH, 'dfh.novel=feature_mixup'),
    'Mixed statistics beat mixed features of two.',
    'mAP 31.3, 27.2 against 27.8, 23.6',
  ),
  _ablation(
    'dfh_mixups',
    Arm('dfh:rendered,dfh.novel=dirichlet_mixup'),
    'dfh.novel=feature_mixup',
    'Mixing all domains beats mixing two.',
    'mAP 29.1, 25.6 against 27.8, 23.6',
  ),
  SideClaim(
    *('dfh_two_sources', f'{SOURCE} 3'),
    'Hallucinated features improve FedPav with two sources.',
    'mAP 29.8, 29.9, 23.5, 25.0 against 24.6, 24.3, 18.9, 22.8',
    *(DFH, BASE, TWO_SOURCES),
  ),
  *(
    _alpha(alpha, published, (one,))
    for (alpha, published), one in zip(ALPHAS.items(), ROUTES, strict=True)
  ),
  SideClaim(
    *('dfh_weight', 'DFH, figure 3'),
    'A weight of 5 beats one of 2.',
    'a figure',
    *(DFH, Arm('dfh:rendered,dfh.lam=2.0'), ROUTES[:1]),
  ),
  _ablation(
    *('dfh_loss', DFH, 'dfh.loss=identity'),
    'The triplet of hallucinations beats their classification.',
    'mAP 31.3, 27.2 against 26.3, 20.4',
    5,
  ),
)
