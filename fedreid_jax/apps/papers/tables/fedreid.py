"""The tables and claims of FedReID (Wu & Gong, AAAI 2021).

  fedreid table --table=fedreid/table2 --preset=paper --root=DIR

There are tables 2 to 6, and figures 3 and 4. The data set that the paper calls
iLIDS is QMUL i-LIDS. Small data sets are tested on ten random halves.
"""

from collections.abc import Mapping, Sequence

from fedreid_jax.apps.papers.sweeps import SWEEPS
from fedreid_jax.apps.papers.tables.declare import (
  ALL,
  ROUTES,
  Arm,
  Claim,
  Models,
  NearClaim,
  Row,
  Scores,
  SideClaim,
  Table,
  of_sweep,
  read,
  route,
)

# Data set and its synthetic stand-in.
CLIENTS = {
  'Duke': ('dukemtmc', 'campus'),
  'Market': ('market1501', 'plaza'),
  'CUHK03': ('cuhk03-np', 'station'),
  'MSMT': ('msmt17:val=drop', 'park'),
}
SMALL = {
  'viper': ('viper', 'mall'),
  'qmul-ilids': ('qmul-ilids', 'garden'),
  '3dpes': ('3dpes', 'market'),
  'caviar4reid': ('caviar4reid', 'alley'),
  'grid': ('grid', 'arcade'),
}
TWO = dict(list(SMALL.items())[:2])
LARGE = {'cuhk-sysu': ('cuhk-sysu', 'bridge')}
# The setting of the recipe `fedreid`, for the methods that it is compared with.
SETTING = tuple(
  """
  data.public="" model.last_stride=2 model.neck=mapping model.bottleneck=512
  model.classifier_bias=True rounds=100 local.batch=32 local.sampler=uniform
  optim.lr=0.1 optim.lr_multipliers=(("params/backbone/",0.1),)
  optim.nesterov=True optim.schedule=step optim.milestones=(40,80)
  evaluation.protocol="" evaluation.metric=euclidean evaluation.feature=feature
  evaluation.flip=True
  """.split()
)
# On built-in images these methods need its mapping network, too.
NETWORK = tuple(
  'model.neck=mapping model.bottleneck=128 evaluation.feature=feature'.split()
)
DIRECT, SUPERVISED = 'Direct', 'Supervised + distilled'
RECIPES = {  # by label or its first word; other labels use `fedreid`
  'FedSGD': 'fedsgd.py',
  'FedAVG': 'fedavg.py:data.labels=max',
  'FedATT': 'fedatt.py',
  'Centralised': 'centralised.py',
  'Client': 'centralised.py',
  'Supervised': 'standalone.py',
  SUPERVISED: 'fedreid.py:variant=supervised',
  'Features': 'standalone.py',
  'Parameters': 'standalone.py',
  'no': 'fedreid.py:variant=plain',
}
TABLE2 = """
  FedSGD          90.72 41.0 65.2
  FedAVG (S=0.5)  93.04 41.5 65.3
  FedAVG (S=1.0)  93.21 41.0 65.2
  FedATT (S=0.5)  92.86 38.3 65.3
  FedATT (S=1.0)  92.97 40.2 61.3
  FedReID (S=0.5) 93.14 45.3 68.3
  FedReID (S=1.0) 93.31 46.2 69.7
  Centralised     93.58 44.6 65.5
"""
TABLE3 = """
  Duke   25.0 56.2 \n Market 26.1 48.0
  CUHK03 21.6 41.0 \n MSMT   27.3 60.5
"""
ENSEMBLES = {  # rows of ensembles of individual clients, by name of the model
  'concat': 'Features in a row  29.4 56.2',
  'average': 'Parameters averaged  19.9 41.8',
}
TABLE4 = 'FedReID 46.2 69.7 67.0 45.6 24.2'
TABLE5 = 'FedReID 80.4 83.4 90.3 92.4 \n Centralised 74.7 77.4 87.2 90.1'
TABLE6 = f"""
  Supervised    88.3 71.4 77.3 58.9 61.7
  {DIRECT}      80.2 60.1 68.0 52.1 48.4
  {SUPERVISED}  90.3 76.2 77.4 60.7 64.6
"""
# The caption of table 6 has the rank-1 of MSMT17, and no mAP.
COLUMNS6 = (
  *('market1501 rank1', 'market1501 mAP', 'dukemtmc rank1', 'dukemtmc mAP'),
  'msmt17 rank1',
)
METRICS = ('mAP', 'rank1', 'rank5', 'rank10')
Domains = Mapping[str, tuple[str, str]]


def _changes(clients: Domains, targets: Domains) -> dict[str, Sequence[str]]:
  paper, synthetic = (
    (
      f'data.sources={tuple(c[k] for c in clients.values())!r}',
      f'data.targets={tuple(t[k] for t in targets.values())!r}',
    )
    for k in (0, 1)
  )
  # Only table 6 tests other persons of the clients' domains.
  own = (f'data.allow_overlap={targets is CLIENTS}',)
  return {ALL: own, 'paper': paper, 'synthetic': synthetic}


def _row(
  label: str,
  targets: Domains,
  published: Scores,
  *pairs: str,
  clients: Domains = CLIENTS,
  model: str = 'global',
  starts_from: str = '',
) -> Row:
  recipe = RECIPES.get(label, RECIPES.get(label.partition(' ')[0]))
  changes = _changes(clients, targets)
  if recipe:
    changes['paper'] = (*SETTING, *changes['paper'])
    changes['synthetic'] = (*NETWORK, *changes['synthetic'])
  changes[ALL] = (*changes[ALL], *pairs)
  return Row(
    label,
    f'configs/{recipe or "fedreid.py"}',
    changes,
    published,
    model,
    starts_from=starts_from,
  )


def _rank1(text: str, targets: Domains) -> dict[str, Scores]:
  return {
    label: {target: {'rank1': x} for target, x in scores.items()}
    for label, scores in read(text, tuple(targets)).items()
  }


def _formulations() -> list[Row]:
  """Table 2: image classification and re-identification."""
  rows = []
  for label, scores in read(TABLE2, ('cifar10', *TWO)).items():
    method, _, share = label.rstrip(')').partition(' (S=')
    pair = f'fraction={share or 1.0}'
    cifar = f'configs/cifar.py:method={method.lower()}'
    top1 = {'cifar10': {'accuracy': scores['cifar10']}}
    own = {target: {'rank1': scores[target]} for target in TWO}
    rows += [
      Row(label, cifar, {ALL: (pair,)}, top1),
      _row(label, TWO, own, pair),
    ]
  return rows


def _own_data_sets() -> list[Row]:
  """Table 6: tests on the clients' data sets."""
  rows = []
  for label, scores in read(TABLE6, COLUMNS6).items():
    published: dict[str, dict[str, float]] = {}
    for column, score in scores.items():
      target, metric = column.split()
      published.setdefault(target, {})[metric] = score
    rows.append(
      _row(
        label,
        CLIENTS,
        published,
        model='global' if label == DIRECT else 'local',
        starts_from=DIRECT if label == SUPERVISED else '',
      )
    )
  return rows


SWEPT = _changes(CLIENTS, TWO)
SMALL_SCORES = _rank1(TABLE4, SMALL)['FedReID']
# Table 2 prints both numbers of this row, too.
JOINT = {
  target: {'rank1': read(TABLE2, ('cifar10', *TWO))['Centralised'][target]}
  for target in TWO
}
TABLES = (
  Table('fedreid/table2', 'federated formulations', _formulations()),
  Table(
    *('fedreid/table3', 'individual clients'),
    [
      *(
        _row(f'Client ({x})', TWO, scores, clients={x: CLIENTS[x]})
        for x, scores in _rank1(TABLE3, TWO).items()
      ),
      *(
        _row(label, TWO, scores, f'evaluation.ensemble={(kind,)!r}', model=kind)
        for kind, text in ENSEMBLES.items()
        for label, scores in _rank1(text, TWO).items()
      ),
      _row('FedReID', TWO, {target: SMALL_SCORES[target] for target in TWO}),
      _row('Centralised', TWO, JOINT),
    ],
  ),
  Table(
    'fedreid/table4', 'small data sets', [_row('FedReID', SMALL, SMALL_SCORES)]
  ),
  Table(
    *('fedreid/table5', 'a large data set'),
    [
      _row(label, LARGE, {'cuhk-sysu': scores})
      for label, scores in read(TABLE5, METRICS).items()
    ],
  ),
  Table(
    *('fedreid/table6', "the clients' own data sets"),
    _own_data_sets(),
    note='Supervised: every client trains alone from the initial weights. '
    'Direct: the model of the federation. Supervised + distilled: every client '
    'then trains alone from this model and its own head, and the same model is '
    'its teacher.',
  ),
  Table(
    *('fedreid/figure3', 'noise'),
    of_sweep(SWEEPS['fedreid_noise'], SWEPT),
    note='The random guess is round 0 in `evaluation` of any of these runs.',
    picture='sweep',
  ),
  Table(
    *('fedreid/figure4a', 'number of clients'),
    [
      _row(f'N={len(x)}', TWO, {}, clients={name: CLIENTS[name] for name in x})
      for x in (('Market',), ('Market', 'Duke'), tuple(CLIENTS))
    ],
    picture='bars',
  ),
  Table(
    *('fedreid/figure4bc', 'share of clients, epochs of a round'),
    of_sweep(SWEEPS['fedreid_fraction_epochs'], SWEPT),
    picture='sweep',
  ),
  Table(
    *('fedreid/figure4d', 'with and without local experts'),
    [_row(label, TWO, {}) for label in ('expert', 'no expert')],
    picture='bars',
  ),
)


PAPER = 'Wu and Gong, AAAI 2021'
EXPERT = Arm('fedreid:imagenet')
MAPPING = ','.join(NETWORK)
CENTRALISED = Arm(f'centralised:imagenet,{MAPPING}')
TAUGHT = Arm(
  'fedreid:imagenet,variant=supervised', 'client', start=EXPERT.recipe
)
# Each client is tested on other persons of its training domain.
OWN = (
  route(
    'plaza campus station', 'plaza campus station', 'data.allow_overlap=True'
  ),
)


def _alone(models: Models) -> Arm:
  """An arm of clients that train alone, or an ensemble of them."""
  # All ensembles are fields of one recipe, so that these arms share their runs.
  ensembles = 'evaluation.ensemble=("concat","average")'
  return Arm(f'standalone:imagenet,{MAPPING},{ensembles}', models)


def _noise(kind: str, beta: str) -> Arm:
  return Arm(f'fedreid:imagenet,noise={kind},noise.beta={beta}')


CLAIMS = (
  Claim(
    *('expert', f'{PAPER}, figure 4d'),
    'The local expert improves the averaged model.',
    'a figure',
    *(EXPERT, Arm('fedreid:imagenet,variant=plain'), ROUTES),
    first=True,
  ),
  Claim(
    *('individuals', f'{PAPER}, table 3'),
    'One model beats every model trained apart.',
    'rank-1 46.2, 69.7 against 27.3, 60.5 of the best of four',
    *(EXPERT, _alone('best_client'), ROUTES),
  ),
  Claim(
    *('one_model', f'{PAPER}, table 3'),
    'One model beats joined features of models apart.',
    'rank-1 46.2, 69.7 against 29.4, 56.2',
    *(EXPERT, _alone('concat'), ROUTES),
  ),
  Claim(
    *('average', f'{PAPER}, table 3'),
    'The mean of models apart is worse.',
    'rank-1 25.0, 26.1, 21.6, 27.3 and 56.2, 48.0, 41.0, 60.5 against 19.9 '
    'and 41.8',
    *(_alone('client'), _alone('average'), ROUTES),
  ),
  SideClaim(
    *('joint', f'{PAPER}, tables 2 and 5'),
    'One model beats joint training on unseen domains.',
    'rank-1 46.2, 69.7 against 44.6, 65.5; mAP 80.4 against 74.7',
    *(EXPERT, CENTRALISED, ROUTES),
  ),
  SideClaim(
    *('joint_own', f'{PAPER}, table 2'),
    "Joint training wins on the clients' own domains.",
    'accuracy 93.58 against 93.31 on CIFAR-10, no figure for persons',
    *(CENTRALISED, EXPERT, OWN),
  ),
  SideClaim(
    *('own_data', f'{PAPER}, table 6'),
    'A global teacher improves local training.',
    'mAP 76.2, 60.7 against 60.1, 52.1',
    *(TAUGHT, EXPERT, OWN),
  ),
  SideClaim(
    *('own_data_or_alone', f'{PAPER}, table 6'),
    'Local training with a teacher beats training alone.',
    'mAP 76.2, 60.7 against 71.4, 58.9',
    *(TAUGHT, _alone('client'), OWN),
  ),
  SideClaim(
    *('noise', f'{PAPER}, figure 3'),
    'Noise of 2e-3 in both directions costs accuracy.',
    'a figure',
    *(EXPERT, _noise('double', '2e-3'), ROUTES),
  ),
  SideClaim(
    *('noise_single', f'{PAPER}, figure 3'),
    'Noise in one direction costs less.',
    'a figure',
    *(_noise('single', '2e-3'), _noise('double', '2e-3'), ROUTES),
  ),
  NearClaim(
    *('noise_or_alone', f'{PAPER}, figure 3'),
    'With noise 5e-4, FedReID is near training apart.',
    'a figure',
    *(_noise('single', '5e-4'), _alone('best_client'), ROUTES),
  ),
)
