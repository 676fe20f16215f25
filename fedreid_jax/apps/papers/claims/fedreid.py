"""Claims of Wu and Gong's FedReID (P4)."""

from fedreid_jax.apps.papers.claims.declare import (
  ROUTES,
  SIDE_SEEDS,
  Arm,
  Claim,
  Models,
  route,
)

PAPER = 'Wu and Gong, AAAI 2021'
EXPERT = Arm('fedreid:trial')
# The mapping network of `fedreid`, for the methods that it is compared with.
NETWORK = 'model.neck=mapping,model.bottleneck=128,evaluation.feature=feature'
JOINT = Arm(f'centralised:trial,{NETWORK}')
SUPERVISED = Arm(
  'fedreid:trial,variant=supervised', 'client', start=EXPERT.recipe
)
TWO = ROUTES[:2]
# Each client is tested on other persons of its training domain.
OWN = (
  route(
    'plaza campus station', 'plaza campus station', 'data.allow_overlap=True'
  ),
)


def _alone(models: Models) -> Arm:
  """Returns an arm of clients that train alone, or an ensemble of them."""
  # All ensembles are fields of one recipe, so that these arms share their runs.
  ensembles = 'evaluation.ensemble=("concat","average")'
  return Arm(f'standalone:trial,{NETWORK},{ensembles}', models)


def _noise(kind: str, beta: str) -> Arm:
  return Arm(f'fedreid:trial,noise={kind},noise.beta={beta}')


CLAIMS = (
  Claim(
    'expert',
    f'{PAPER}, figure 4d',
    'The local expert improves the averaged model.',
    'a figure',
    EXPERT,
    Arm('fedreid:trial,variant=plain'),
    ROUTES,
    first=True,
  ),
  Claim(
    'individuals',
    f'{PAPER}, table 3',
    'One aggregated model beats every model that is trained apart.',
    'rank-1 46.2, 69.7 against 27.3, 60.5 of the best of four',
    EXPERT,
    _alone('best_client'),
    ROUTES,
  ),
  Claim(
    'one_model',
    f'{PAPER}, table 3',
    'One aggregated model beats the features of models trained apart.',
    'rank-1 46.2, 69.7 against 29.4, 56.2',
    EXPERT,
    _alone('concat'),
    ROUTES,
  ),
  Claim(
    'average',
    f'{PAPER}, table 3',
    'The mean of parameters trained apart is worse than their models.',
    'rank-1 25.0, 26.1, 21.6, 27.3 and 56.2, 48.0, 41.0, 60.5 against 19.9 '
    'and 41.8',
    _alone('client'),
    _alone('average'),
    ROUTES,
  ),
  Claim(
    'joint',
    f'{PAPER}, tables 2 and 5',
    'One aggregated model beats joint training on unseen domains.',
    'rank-1 46.2, 69.7 against 44.6, 65.5; mAP 80.4 against 74.7',
    EXPERT,
    JOINT,
    TWO,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'joint_own',
    f'{PAPER}, table 2',
    "Joint training beats the global model on the clients' own domains.",
    'accuracy 93.58 against 93.31 on CIFAR-10, no figure for persons',
    JOINT,
    EXPERT,
    OWN,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'own_data',
    f'{PAPER}, table 6',
    'Local training with the global model as the teacher improves it on the '
    "client's own domain.",
    'mAP 76.2, 60.7 against 60.1, 52.1',
    SUPERVISED,
    EXPERT,
    OWN,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'own_data_or_alone',
    f'{PAPER}, table 6',
    'Local training with the global model as the teacher beats training alone.',
    'mAP 76.2, 60.7 against 71.4, 58.9',
    SUPERVISED,
    _alone('client'),
    OWN,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'noise',
    f'{PAPER}, figure 3',
    'The accuracy falls when noise is added (2e-3 in both directions).',
    'a figure',
    EXPERT,
    _noise('double', '2e-3'),
    TWO,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'noise_single',
    f'{PAPER}, figure 3',
    'Noise in one direction costs less than in both (2e-3).',
    'a figure',
    _noise('single', '2e-3'),
    _noise('double', '2e-3'),
    TWO,
    seeds=SIDE_SEEDS,
  ),
  Claim(
    'noise_or_alone',
    f'{PAPER}, figure 3',
    'With noise of 5e-4 one aggregated model is near the best model that is '
    'trained apart.',
    'a figure',
    _noise('single', '5e-4'),
    _alone('best_client'),
    TWO,
    claimed='equal',
    margin=3.0,
    seeds=SIDE_SEEDS,
  ),
)
