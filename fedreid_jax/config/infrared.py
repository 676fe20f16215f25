"""Visible-infrared presets of L2RW, and the configurations that they change.

The recipe `dppt` and the recipes of shared entities use them.
"""

from fedreid_jax.config import presets

DNS_RATES = (
  (r'params/backbone/layer3_', 0.2),
  (r'params/backbone/layer4_', 0.25),
  (r'params/(backbone|css)/', 0.1),
)


def federated(name: str, components: tuple[str, ...], client_split: str):
  """L2RW's setting for independent cameras (CI) and entities (EI), section 4.1.

  The network has one stream, GeM and BNNeck, and the loss is cross-entropy and
  circle loss. Batches have 8 identities by 8 images with replacement, the
  optimisers keep their momentum, and the rate changes within the round.
  """
  c = presets.base(name, components)
  c.data.client_split = client_split
  _network(c)
  c.loss.circle = 1.0
  c.local.sampler, c.local.batch, c.local.identities = 'pk_replace', 64, 8
  c.optim.lr = 0.2
  c.optim.schedule, c.optim.schedule_per_step = 'linear', True
  c.optim.reset_each_round = 'fednova' in components
  return c


def shared(
  name: str, components: tuple[str, ...], modality_specific_stages: int
):
  """L2RW's setting of entities that share their images (ES), section 4.1.

  The network has two streams if it supports them. Batches have 8 identities by
  4 visible and 4 infrared images, and the schedule has a warm-up of ten epochs
  and then steps.
  """
  c = presets.base(name, components)
  _network(c)
  c.model.modality_specific_stages = modality_specific_stages
  c.data.client_split = 'entity_shared'
  c.local.sampler, c.local.batch, c.local.identities = 'pk_modality', 64, 8
  c.optim.lr, c.optim.warmup = 0.1, 10
  c.optim.schedule, c.optim.milestones = 'step', (20, 50)
  c.optim.reset_each_round = False
  return c


def erase(c) -> None:
  """Erases a rectangle of half the images, like the code of CAJ and DNS."""
  # That code samples rectangles until one fits, and fills it after
  # normalisation with the mean of CIFAR-10's channels before normalisation.
  c.augment.erase, c.augment.erase_tries = 0.5, 100
  c.augment.erase_fill = (0.4914, 0.4822, 0.4465)


def freeze_bias(c) -> None:
  """Keeps the BNNeck's bias at zero, like LBA, AGW, CAJ, DEEN and AGW*."""
  c.optim.lr_multipliers = (
    ('params/neck/bn/bias', 0.0),
    *c.optim.lr_multipliers,
  )


def dns_rates(c) -> None:
  """Sets the rates of DNS, which are higher in the last stages."""
  # A backbone with random initial weights, for which `small` sets no
  # multipliers, keeps the rate of the head.
  if c.optim.lr_multipliers:
    c.optim.lr_multipliers = DNS_RATES


def _network(c) -> None:
  c.model.name, c.model.pool, c.model.neck = 'resnet50', 'gem', 'bnneck'
  c.optim.lr_multipliers = (('params/backbone/', 0.1),)
  c.evaluation.metric, c.evaluation.report_both_neck_features = 'cosine', True


def _peak(c, rounds: int) -> None:
  """Sets rounds and a rate that peaks at round 16 of 50 and ends at zero."""
  c.rounds = rounds
  peak = 16.0 if rounds >= 30 else rounds / 3.0
  c.optim.points = ((0.0, 1e-4), (peak, 1.0), (float(rounds), 0.0))


def _small(c) -> None:
  c.data.height, c.data.width = 64, 32
  c.data.identities, c.data.shots = 48, 4
  c.data.target_identities, c.data.target_shots = 40, 2
  # With independent reflectances, networks of this size learn no features that
  # transfer from one modality to the other.
  c.data.brightness_correlation = 0.8
  c.local.epochs = 3
  c.model.name, c.model.width = 'resnet18', 0.25
  c.augment.pad = 3
  c.optim.lr = 0.05
  # A backbone with random initial weights needs the rate of the head.
  c.optim.lr_multipliers = ()
  c.evaluation.every = 10


def synthetic(c) -> None:
  """Uses synthetic images of one domain's cameras, or of three domains."""
  _small(c)
  if c.data.client_split == 'camera_independent':
    c.data.sources = ('plaza:cameras=4,infrared=2',)
    c.data.targets = c.data.sources
    c.data.allow_overlap = True  # other persons of the same domain
    # With fewer persons and steps, base and channel exchange do not differ.
    # Clients have 960 images and 1,280 steps each.
    c.data.height, c.data.width = 32, 16
    c.data.identities, c.local.epochs = 240, 4
  else:
    c.data.sources = (
      'plaza:cameras=4,infrared=2',
      'campus:cameras=2,infrared=2',
    )
    c.data.targets = ('station:cameras=4,infrared=2',)
    c.local.epochs = 2  # clients of several cameras have more steps per epoch
    c.evaluation.every = 1  # the published figures are those of the best round
  _rounds(c, 20)


def smoke(c) -> None:
  """Reduces `synthetic` to seconds."""
  synthetic(c)
  c.data.height, c.data.width = 32, 16
  c.data.identities, c.data.target_identities = 8, 8
  c.model.width, c.local.epochs = 0.125, 1
  # Running moments lag behind in so few steps, and AGW's non-local blocks cube
  # the error: at the full rate features are infinite after seven steps.
  c.optim.lr = 0.01
  c.evaluation.every = 2
  _rounds(c, 2)


def _rounds(c, rounds: int) -> None:
  if c.optim.schedule == 'linear':
    _peak(c, rounds)
  else:
    c.rounds, c.optim.warmup = rounds, max(1, rounds // 4)
    c.optim.milestones = (max(1, 2 * rounds // 3),)


def paper(c) -> None:
  """Sets the published setting: SYSU-MM01 by camera, or other data sets to it.

  With entities as clients, LLCM and RegDB are the sources and SYSU-MM01 is the
  target.
  """
  c.data.source = 'datasets'
  c.data.height, c.data.width = 288, 144
  c.data.resample = 'lanczos'
  if c.data.client_split == 'camera_independent':
    c.data.sources = c.data.targets = ('sysu-mm01',)
    c.data.allow_overlap = True  # other persons of the same data set
  else:
    c.data.sources, c.data.targets = ('llcm', 'regdb'), ('sysu-mm01',)
  c.augment.pad = 10
  c.evaluation.ranks = (1, 5, 10, 20)
  if c.optim.schedule == 'linear':
    _peak(c, 50 if c.data.client_split == 'camera_independent' else 30)
  else:
    c.rounds = 30
  if c.data.client_split != 'camera_independent':
    c.evaluation.every = 1  # the published figures are those of the best round


def vcm(c) -> None:
  """Sets L2RW+'s setting of HITSZ-VCM: batches of 8 by 4 tracklets."""
  _tracklets(c, 'hitsz-vcm', 6)
  c.local.batch, c.local.identities = 32, 8


def bupt(c) -> None:
  """Sets L2RW+'s setting of BUPTCampus: 16 persons, a tracklet of each side."""
  _tracklets(c, 'buptcampus', 10)
  c.local.sampler, c.local.batch, c.local.identities = 'pk_modality', 32, 16


def _tracklets(c, name: str, frames: int) -> None:
  """Changes `paper` to a data set of tracklets; tests use as many frames."""
  paper(c)
  c.data.sources, c.data.targets = (name,), (f'{name}:frames={frames}',)
  c.local.frames = frames
  _peak(c, 100)


def trial(c) -> None:
  """Changes `synthetic` to the trials of claims, see docs/protocol.md."""
  synthetic(c)
  c.evaluation.validation = presets.HELD_OUT
  c.data.presence = 0.5  # as in SYSU-MM01, half of the cameras miss persons
  if c.data.client_split == 'camera_independent':
    # Running moments of clients with one modality each fit neither of them.
    c.evaluation.batch_stats = 'modality'
    c.evaluation.every = c.rounds
  else:
    c.data.brightness_correlation = 0.5
    c.model.pretrained = 'resnet18-synthetic'


PRESETS = {
  'synthetic': synthetic,
  'smoke': smoke,
  'paper': paper,
  'trial': trial,
}
# Video-based presets of L2RW+ (arXiv 2503.12232v2), by camera or by entity.
WITH_TRACKLETS = {**PRESETS, 'vcm': vcm, 'bupt': bupt}
