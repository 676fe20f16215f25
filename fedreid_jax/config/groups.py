"""The fields of a configuration that belong to no component.

`Run` has the fields at the top level; every other class is the group of its
name. The fields of components are declared beside their `make`. Nothing imports
this module when a program runs: like those of components, its declarations are
read from the source (`config.declared`), so that JAX is not imported.
"""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax.core.aggregation import BatchStatsRule
from fedreid_jax.core.optimizers import OptimizerName, Schedule
from fedreid_jax.core.options import Range, Regex
from fedreid_jax.core.plugins import NETWORK, SOURCE
from fedreid_jax.data.client_split import ClientSplit, Labels
from fedreid_jax.data.colour import Infrared, Kind
from fedreid_jax.data.datasets.regdb import Direction
from fedreid_jax.data.decoder import MAX_PIXELS, Resample
from fedreid_jax.data.sampling import SamplerName
from fedreid_jax.evaluation.distances import Metric
from fedreid_jax.evaluation.protocols import ProtocolName
from fedreid_jax.models.head import NeckKind
from fedreid_jax.models.networks import DType, NetworkName, VariantName
from fedreid_jax.models.pool import Pool

SEED = Range(0, 2**31 - 1)
PIXELS = Range(8, 4096)
Feature = Literal['embedding', 'feature']


@dataclasses.dataclass(frozen=True)
class Run:
  """The method and its rounds."""

  name: Annotated[str, 'of the recipe, part of the default work directory'] = (
    'run'
  )
  components: Annotated[
    tuple[str, ...],
    'parts of the method, in order; a plug-in by its module or entry point',
  ] = ('fedpav',)
  seed: Annotated[int, SEED, 'of models, batches, augmentation and cohorts'] = 0
  rounds: Annotated[int, Range(1), 'communication rounds'] = 20
  fraction: Annotated[
    float, Range(1e-9, 1), 'share of the clients in a round, rounded up'
  ] = 1.0
  batch_stats_rule: Annotated[
    BatchStatsRule, 'how running statistics are aggregated'
  ] = 'average'
  checkpoint_every: Annotated[
    int, Range(1), 'rounds; the last round and signals save too'
  ] = 5
  start_from: Annotated[
    str, 'work directory of a run whose last models are the first models'
  ] = ''


@dataclasses.dataclass(frozen=True)
class Data:
  """Images, and how they are split over clients."""

  source: Annotated[
    Literal['synthetic', 'folder', 'datasets'], SOURCE, 'of the images'
  ] = 'synthetic'
  root: Annotated[
    str, 'folder of domains; datasets: of one data set or of all'
  ] = ''
  task: Annotated[
    Literal['retrieval', 'classification'],
    'classification is of classes that clients have in common',
  ] = 'retrieval'
  client_split: Annotated[
    ClientSplit,
    'the clients; iid and dirichlet split one domain over num_clients, '
    'camera_ and entity_ are visible-infrared',
  ] = 'by_dataset'
  num_clients: Annotated[int, Range(1), 'iid, dirichlet: clients'] = 4
  concentration: Annotated[
    float, Range(1e-3), 'dirichlet: of each class over the clients'
  ] = 0.5
  labels: Annotated[Labels, 'label space of a classifier that is sent'] = ''
  sources: Annotated[
    tuple[str, ...],
    'domains to train on, one client per domain; empty means all remaining '
    'domains',
  ] = ()
  targets: Annotated[
    tuple[str, ...], 'held-out domains, ranked at evaluation'
  ] = ()
  public: Annotated[
    str, 'domain of unlabelled images that the server and all clients may see'
  ] = ''
  query: Annotated[
    str,
    "folder: queries of a target, 'first_per_camera', 'first' (of each "
    "identity) or 'camera=NAME+NAME'",
  ] = 'first_per_camera'
  identity_pattern: Annotated[
    str, Regex(1), 'folder: its group is the identity, in the path in a domain'
  ] = r'^([^/]+)/'
  camera_pattern: Annotated[
    str, Regex(1), 'folder: its group is the camera, in the path in a domain'
  ] = r'_(\d+)\.[^.]+$'
  height: Annotated[
    int, PIXELS, 'pixels; images are resized once, when they are read'
  ] = 64
  width: Annotated[int, PIXELS, 'pixels'] = 32
  channels: Annotated[Literal['rgb', 'grey'], 'of images'] = 'rgb'
  invert: Annotated[
    bool, 'folder: dark strokes on white become light on black'
  ] = False
  mean: Annotated[
    tuple[float, ...], 'subtracted from normalised images, one a channel'
  ] = (0.485, 0.456, 0.406)
  std: Annotated[
    tuple[float, ...], 'normalised images are divided by it, one a channel'
  ] = (0.229, 0.224, 0.225)
  on_bad_image: Annotated[
    Literal['error', 'skip'], 'treatment of unreadable files'
  ] = 'error'
  resample: Annotated[Resample, 'filter of the resizing'] = 'bicubic'
  max_pixels: Annotated[
    int,
    Range(64, 89_478_485),  # Pillow opens no more.
    'of a file; a larger one is not decoded',
  ] = MAX_PIXELS
  fast_decode: Annotated[
    bool, 'decode JPEG at a fraction of its size; pixels differ'
  ] = False
  allow_overlap: Annotated[
    bool, 'let a domain, or equal files, be both source and target'
  ] = False
  world_seed: Annotated[int, SEED, 'of synthetic images and random splits'] = 0
  identities: Annotated[
    int, Range(1), 'synthetic: identities of a source domain'
  ] = 48
  cameras: Annotated[
    int, Range(0), 'synthetic: visible cameras of every domain'
  ] = 4
  infrared: Annotated[
    int, Range(0), 'synthetic: infrared cameras of every domain'
  ] = 0
  brightness_correlation: Annotated[
    float,
    Range(0, 1),
    'synthetic: share of a garment in infrared that is its brightness; the '
    'rest is drawn independently',
  ] = 0.0
  shots: Annotated[
    int, Range(1), 'synthetic: images of an identity from a camera'
  ] = 4
  target_identities: Annotated[
    int, Range(1), 'synthetic: identities of a target domain'
  ] = 60
  direction: Annotated[Direction, 'visible-infrared: query, then gallery'] = (
    'infrared-visible'
  )
  search: Annotated[Literal['all', 'indoor'], 'SYSU-MM01: cameras'] = 'all'
  shots_per_camera: Annotated[
    int, Range(1), 'SYSU-MM01: 1 (single-shot) or 10 (multi-shot)'
  ] = 1
  gallery_sampling: Annotated[
    Literal['agw', 'official'], 'SYSU-MM01: how galleries are drawn'
  ] = 'agw'
  trials: Annotated[int, Range(1, 10), 'SYSU-MM01, LLCM: random galleries'] = 10
  target_shots: Annotated[
    int,
    Range(2),
    'synthetic: images of an identity from a camera of a target; the first is '
    'a query, the rest are in the gallery',
  ] = 2


@dataclasses.dataclass(frozen=True)
class Model:
  """The network."""

  name: Annotated[
    NetworkName, NETWORK, 'backbone; resnet32 is that of CIFAR'
  ] = 'resnet50'
  variant: Annotated[
    VariantName, 'change of the backbone by a published method'
  ] = 'plain'
  modality_specific_stages: Annotated[
    int, Range(0, 5), 'of a backbone: the stem, then stages'
  ] = 0
  width: Annotated[
    float, Range(1 / 64, 16), 'multiplies the channels of a ResNet'
  ] = 1.0
  small_stem: Annotated[bool, '3x3 stem without pooling, for small images'] = (
    False
  )
  last_stride: Annotated[int, Range(1, 2), 'of the last ResNet stage'] = 1
  features: Annotated[
    tuple[int, ...], Range(0), "channels of the convnet's blocks"
  ] = (32, 64, 128, 128)
  pool: Annotated[Pool, 'of the feature maps'] = 'gap'
  neck: Annotated[
    NeckKind,
    'between feature and embedding; bn has no scale and bias, bnneck has',
  ] = 'bn'
  bottleneck: Annotated[
    int, Range(1), 'features of the bottleneck and mapping necks'
  ] = 512
  dropout: Annotated[
    float, Range(0, 0.999), 'of the bottleneck and mapping necks'
  ] = 0.5
  classifier_bias: Annotated[
    bool, 'whether the identity classifier has a bias'
  ] = False
  dtype: Annotated[
    DType,
    'of computation; parameters, statistics and losses are float32',
  ] = 'float32'
  pretrained: Annotated[str, 'torchvision weights as .safetensors'] = ''


@dataclasses.dataclass(frozen=True)
class Local:
  """Batches of a client in a round."""

  sampler: Annotated[
    SamplerName,
    'uniform shuffles; pk_modality and pk_caj are visible-infrared',
  ] = 'uniform'
  batch: Annotated[int, Range(2), 'images of a step'] = 32
  epochs: Annotated[
    int, Range(1), "passes over a client's images in a round"
  ] = 1
  steps: Annotated[
    int, Range(0), "above 0: steps of a round, whatever the client's size"
  ] = 0
  identities: Annotated[
    int, Range(2), 'pk: identities of a batch, with batch / this images each'
  ] = 16
  cross_camera: Annotated[bool, 'pk: prefer images of other cameras'] = True
  drop_last: Annotated[
    bool, 'leave out a batch that is not full, unless it is the only one'
  ] = True
  accumulate: Annotated[
    bool, 'one step a round with the gradient of all images'
  ] = False
  data_pass_batch: Annotated[
    int, Range(1), 'images of a step of a data pass'
  ] = 64


@dataclasses.dataclass(frozen=True)
class Optim:
  """The optimiser of clients and its learning rate."""

  name: Annotated[OptimizerName, 'optimiser'] = 'sgd'
  lr: Annotated[float, Range(0), 'before schedule and multipliers'] = 0.05
  momentum: Annotated[float, Range(0, 0.9999), 'sgd'] = 0.9
  nesterov: Annotated[bool, 'sgd'] = True
  weight_decay: Annotated[
    float, Range(0), 'added to the gradient of leaves that have one'
  ] = 5e-4
  lr_multipliers: Annotated[
    tuple[tuple[str, float], ...],
    Regex(),
    'pairs of a regular expression of leaves and a factor',
  ] = ()
  schedule: Annotated[Schedule, 'by global round'] = 'constant'
  milestones: Annotated[
    tuple[float, ...],
    Range(0),
    'step: rounds at which the rate falls; below 1, the share of the rounds '
    'after which it does',
  ] = ()
  gamma: Annotated[float, Range(0), 'step: factor'] = 0.1
  points: Annotated[
    tuple[tuple[float, float], ...], 'linear: pairs of a round and a factor'
  ] = ()
  warmup: Annotated[int, Range(0), 'rounds of linear rise'] = 0
  schedule_per_step: Annotated[bool, 'let the schedule move within a round'] = (
    False
  )
  reset_each_round: Annotated[
    bool, 'start every round with a new optimiser state'
  ] = True


@dataclasses.dataclass(frozen=True)
class Loss:
  """The loss of clients, to which components add."""

  identity: Annotated[float, Range(0), 'weight of cross-entropy'] = 1.0
  label_smoothing: Annotated[
    float, Range(0, 0.999), "over a client's own identities"
  ] = 0.0
  triplet: Annotated[float, Range(0), 'weight of the hard triplet loss'] = 0.0
  margin: Annotated[float, Range(0), 'of the hard triplet loss'] = 0.5
  triplet_on: Annotated[
    Feature, 'the hard triplet loss is after or before the neck'
  ] = 'embedding'
  circle: Annotated[
    float, Range(0), 'weight of the circle loss on embeddings'
  ] = 0.0
  circle_margin: Annotated[float, Range(0), 'of the circle loss'] = 0.45
  circle_gamma: Annotated[float, Range(0), 'scale of the circle loss'] = 64.0
  weighted_triplet: Annotated[
    float, Range(0), "weight of AGW's triplet loss on features"
  ] = 0.0
  weighted_squared: Annotated[bool, "CAJ's form of AGW's triplet loss"] = False


@dataclasses.dataclass(frozen=True)
class Augment:
  """Random changes of training images."""

  pad: Annotated[
    int, Range(0), 'pixels of zeros on every side before a random crop'
  ] = 4
  flip: Annotated[float, Range(0, 1), 'probability of mirroring'] = 0.5
  erase: Annotated[float, Range(0, 1), 'probability of erasing a rectangle'] = (
    0.0
  )
  erase_fill: Annotated[
    tuple[float, ...],
    'after normalisation, one value a channel; empty means zeros',
  ] = ()
  erase_area: Annotated[
    tuple[float, ...], 'share of the image, smallest and largest'
  ] = (0.02, 0.4)
  erase_tries: Annotated[
    int, Range(1, 1000), 'rectangles drawn until one fits'
  ] = 1
  grey: Annotated[
    float, Range(0, 1), 'probability of no colour, before normalisation'
  ] = 0.0
  channel: Annotated[
    float, Range(0, 1), 'probability that one channel replaces all'
  ] = 0.0
  channel_kinds: Annotated[
    Kind, 'which channel replaces all, luminance being one'
  ] = 'exchange'
  infrared: Annotated[Infrared, 'what is done to infrared images instead'] = (
    'same'
  )
  copies: Annotated[
    Literal['', Kind], 'pk_caj: change of the second third of a batch'
  ] = ''


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Tests during and after training."""

  every: Annotated[
    int, Range(1), 'rounds; the first and last are always evaluated'
  ] = 5
  protocol: Annotated[
    Literal['', ProtocolName], "empty means the target's own"
  ] = ''
  rerank: Annotated[bool, 'k-reciprocal re-ranking'] = False
  metric: Annotated[Metric, 'distance of features'] = 'euclidean'
  feature: Annotated[Feature, 'ranked: after or before the neck'] = 'embedding'
  report_both_neck_features: Annotated[bool, 'rank the other feature, too'] = (
    False
  )
  batch_stats: Annotated[
    Literal['running', 'source'],
    "source: re-estimated at the tested weights on the clients' own images",
  ] = 'running'
  flip: Annotated[bool, "average with the mirror image's feature"] = False
  ranks: Annotated[tuple[int, ...], Range(1), 'of the match curve'] = (1, 5, 10)
  batch: Annotated[int, Range(1), 'images of a device at a time'] = 128
  ensemble: Annotated[
    tuple[Literal['concat', 'average'], ...],
    "ensembles of the clients' models to evaluate, too",
  ] = ()
  ensemble_norm: Annotated[bool, 'concat: parts have unit length'] = True


@dataclasses.dataclass(frozen=True)
class Execution:
  """How a run uses the machine."""

  deterministic: Annotated[bool, 'same bits on 1, 2, 4 and 8 devices'] = True
  width: Annotated[
    int, Range(0), 'clients vmapped at a time, 0 all; not deterministic'
  ] = 1
  devices: Annotated[
    int, Range(0), 'number of devices; 0 means at most one per client'
  ] = 0
  image_budget_mb: Annotated[
    float, Range(0), 'images kept on a device; 0 means no limit'
  ] = 0.0
