"""Image classification in one label space: Wu & Gong's table 2 on CIFAR-10.

All layers of a ResNet-32 travel, the classifier too, because every client has
all classes. `method=`

  fedsgd       FedAvg with one local epoch
  fedavg       (default)
  fedatt       attentive aggregation
  fedreid      uniform mean, a local expert teaches each client
  centralised  all images at one client, which keeps its momentum

  python -m launchers.main --config=configs/cifar.py[:smoke]
  python -m launchers.main \
    --config=configs/cifar.py:synthetic,method=fedreid,fraction=0.5
  python -m launchers.main --config=configs/cifar.py:paper,data.root=DIR

Top-1 of table 2, CIFAR-10, share of clients 0.5 and 1: FedSGD - and 90.72,
FedAVG 93.04 and 93.21, FedATT 92.86 and 92.97, FedReID 93.14 and 93.31,
centralised 93.58. The paper says ResNet-32 and five local epochs; it does not
say how many clients there are, how images are dealt, the rate, batch or number
of rounds. `paper` takes four clients of equal random shares, the batch and
rounds of its re-identification, and the rate and data augmentation usual for
this network. `data.client_split=dirichlet` deals classes unevenly.
"""

from configs import fedpav
from fedreid_jax import errors
from fedreid_jax.config import parsing

METHODS = {
  'fedsgd': ('fedavg',),
  'fedavg': ('fedavg',),
  'fedatt': ('fedavg', 'fedatt'),
  'fedreid': ('fedavg', 'uniform', 'local_expert'),
  'centralised': ('fedavg',),
}


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,method=fedatt][,key=value...]`."""
  arg, method = parsing.take_argument(arg, 'method', 'fedavg')
  if method not in METHODS:
    raise errors.ConfigError(
      f'unknown method {method!r}', '--config', f'one of {", ".join(METHODS)}'
    )
  config = fedpav.base(f'cifar_{method}', METHODS[method])
  config.data.task, config.data.client_split = 'classification', 'iid'
  if method == 'centralised':
    config.data.client_split = 'centralised'
    config.optim.reset_each_round = False
  config.data.height = config.data.width = 32
  config.model.name = 'resnet32'
  config.model.neck, config.model.classifier_bias = 'none', True
  config.local.epochs = 1 if method == 'fedsgd' else 5
  config.optim.lr, config.optim.schedule = 0.1, 'step'
  return parsing.recipe(arg, config, PRESETS)


def synthetic(c) -> None:
  """Twelve persons as classes, tested on photographs taken later."""
  c.data.sources = c.data.targets = ('plaza',)
  c.data.width = 16
  c.data.identities, c.data.shots, c.data.target_shots = 12, 8, 4
  c.local.batch = 16
  c.optim.lr = 0.03  # at 0.1 so few images are not learned
  c.rounds, c.optim.milestones = 6, (4,)
  c.augment.pad = 2


def smoke(c) -> None:
  """The same in seconds: another network, few persons, two rounds."""
  synthetic(c)
  c.model.name, c.model.features = 'convnet', (16, 32)
  c.data.identities, c.data.shots, c.data.target_shots = 6, 4, 2
  c.local.batch = 8
  c.rounds, c.optim.milestones = 2, ()
  c.evaluation.every = 2


def paper(c) -> None:
  """CIFAR-10 in four equal parts."""
  c.data.source = 'datasets'
  c.data.sources = c.data.targets = ('cifar10',)
  c.data.mean = (0.4914, 0.4822, 0.4465)  # of the training images
  c.data.std = (0.2470, 0.2435, 0.2616)
  c.rounds, c.optim.milestones = 100, (40, 80)


PRESETS = {'synthetic': synthetic, 'smoke': smoke, 'paper': paper}
