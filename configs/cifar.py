"""Image classification in one label space: Wu & Gong's table 2 on CIFAR-10.

All layers of a ResNet-32 are shared, including the classifier, because every
client has all classes. The methods of `method=` are:

  fedsgd       FedAvg with one local epoch
  fedavg       FedAvg (default)
  fedatt       attentive aggregation
  fedreid      uniform mean, a local expert teaches each client
  centralised  all images at one client, which keeps its momentum

  fedreid train cifar[:smoke]
  fedreid train \
    cifar:synthetic,method=fedreid,fraction=0.5
  fedreid train cifar:paper,data.root=DIR

Top-1 of table 2, CIFAR-10, fraction of clients 0.5 and 1: FedSGD - and 90.72,
FedAVG 93.04 and 93.21, FedATT 92.86 and 92.97, FedReID 93.14 and 93.31,
centralised 93.58. The paper specifies ResNet-32 and five local epochs; it does
not specify the number of clients, the partition of images, the rate, the batch
or the number of rounds. `paper` has four clients with equal random partitions,
the batch and rounds of the paper's re-identification, and the usual rate and
data augmentation of this network. `data.client_split=dirichlet` partitions
classes unevenly.
"""

from fedreid_jax.config import parsing, presets


def get_config(arg: str | None = None):
  """Returns the recipe; `arg` is `PRESET[,method=fedatt][,key=value...]`."""
  given = parsing.argument(
    arg,
    {'synthetic': _synthetic, 'smoke': _smoke, 'paper': _paper},
    method=('fedavg', 'fedsgd', 'fedatt', 'fedreid', 'centralised'),
  )
  method = given.options['method']
  added = {'fedatt': ('fedatt',), 'fedreid': ('uniform', 'local_expert')}
  c = presets.base(f'cifar_{method}', ('fedavg', *added.get(method, ())))
  c.model.name = 'resnet32'
  c.data.height = c.data.width = 32
  c.optim.lr, c.optim.schedule = 0.1, 'step'
  given.apply_preset(c)
  c.data.task, c.data.client_split = 'classification', 'iid'
  if method == 'centralised':
    c.data.client_split = 'centralised'
    c.optim.reset_each_round = False
  c.model.neck, c.model.classifier_bias = 'none', True
  c.local.epochs = 1 if method == 'fedsgd' else 5
  return given.override(c)


def _synthetic(c):
  """Uses twelve persons as classes and tests on later photographs."""
  c.data.sources = c.data.targets = ('plaza',)
  c.data.width = 16
  c.data.identities, c.data.shots, c.data.target_shots = 12, 8, 4
  c.local.batch = 16
  c.optim.lr = 0.03  # at 0.1 so few images are not learned
  c.rounds, c.optim.milestones = 6, (4,)
  c.augment.pad = 2


def _smoke(c):
  """The same in seconds: another network, few persons, two rounds."""
  _synthetic(c)
  c.model.name, c.model.features = 'convnet', (16, 32)
  c.data.identities, c.data.shots, c.data.target_shots = 6, 4, 2
  c.local.batch = 8
  c.rounds, c.optim.milestones = 2, ()
  c.evaluation.every = 2


def _paper(c):
  """CIFAR-10 in four equal parts."""
  c.data.source = 'datasets'
  c.data.sources = c.data.targets = ('cifar10',)
  c.data.mean = (0.4914, 0.4822, 0.4465)  # of the training images
  c.data.std = (0.2470, 0.2435, 0.2616)
  c.rounds, c.optim.milestones = 100, (40, 80)
