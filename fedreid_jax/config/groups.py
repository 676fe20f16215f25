"""The fields of a configuration that do not belong to components.

`Run` has the fields at the top level; every other class is the group of its
name. The fields of components are declared next to their `make`. A running
program does not import this module: like the declarations of components, its
declarations are read from the source (`config.declared`), so that JAX is not
imported.
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

  name: Annotated[
    str, 'name of the recipe, part of the default work directory'
  ] = 'run'
  components: Annotated[
    tuple[str, ...],
    'components of the method, in order; plug-ins are given by their module or '
    'entry point',
  ] = ('fedpav',)
  seed: Annotated[
    int, SEED, 'random seed of models, batches, augmentation and cohorts'
  ] = 0
  rounds: Annotated[int, Range(1), 'number of communication rounds'] = 20
  fraction: Annotated[
    float,
    Range(1e-9, 1),
    'fraction of the clients in a round; their number is rounded up',
  ] = 1.0
  batch_stats_rule: Annotated[
    BatchStatsRule, 'aggregation of running statistics'
  ] = 'average'
  checkpoint_every: Annotated[
    int,
    Range(1),
    'rounds between checkpoints; the last round and signals also save one',
  ] = 5
  start_from: Annotated[
    str, 'work directory of a run whose last models initialise this run'
  ] = ''


@dataclasses.dataclass(frozen=True)
class Data:
  """Images and their split over clients."""

  source: Annotated[
    Literal['synthetic', 'folder', 'datasets'], SOURCE, 'source of the images'
  ] = 'synthetic'
  root: Annotated[
    str,
    'folder: directory of the domains; datasets: directory of one data set or '
    'of all',
  ] = ''
  task: Annotated[
    Literal['retrieval', 'classification'],
    'retrieval of persons, or classification with classes common to all '
    'clients',
  ] = 'retrieval'
  client_split: Annotated[
    ClientSplit,
    'split of the images over clients; iid and dirichlet split one domain over '
    'num_clients, camera_ and entity_ are visible-infrared',
  ] = 'by_dataset'
  num_clients: Annotated[int, Range(1), 'iid, dirichlet: number of clients'] = 4
  concentration: Annotated[
    float,
    Range(1e-3),
    "dirichlet: concentration of each class's distribution over the clients",
  ] = 0.5
  labels: Annotated[Labels, 'label space of a shared classifier'] = ''
  sources: Annotated[
    tuple[str, ...],
    'domains to train on, one client per domain; empty means all remaining '
    'domains',
  ] = ()
  targets: Annotated[tuple[str, ...], 'held-out domains for evaluation'] = ()
  public: Annotated[
    str, 'domain of unlabelled images that the server and all clients can use'
  ] = ''
  query: Annotated[
    str,
    "folder: queries of a target: 'first_per_camera', 'first' (of each "
    "identity) or 'camera=NAME+NAME'",
  ] = 'first_per_camera'
  identity_pattern: Annotated[
    str,
    Regex(1),
    'folder: regular expression of the path within a domain; its group is the '
    'identity',
  ] = r'^([^/]+)/'
  camera_pattern: Annotated[
    str,
    Regex(1),
    'folder: regular expression of the path within a domain; its group is the '
    'camera',
  ] = r'_(\d+)\.[^.]+$'
  height: Annotated[
    int,
    PIXELS,
    'image height in pixels; images are resized once, when they are read',
  ] = 64
  width: Annotated[int, PIXELS, 'image width in pixels'] = 32
  channels: Annotated[Literal['rgb', 'grey'], 'channels of images'] = 'rgb'
  invert: Annotated[
    bool, 'folder: invert images, for dark strokes on a white background'
  ] = False
  mean: Annotated[
    tuple[float, ...], 'mean of the normalisation, one value per channel'
  ] = (0.485, 0.456, 0.406)
  std: Annotated[
    tuple[float, ...],
    'standard deviation of the normalisation, one value per channel',
  ] = (0.229, 0.224, 0.225)
  on_bad_image: Annotated[
    Literal['error', 'skip'], 'treatment of unreadable files'
  ] = 'error'
  resample: Annotated[Resample, 'filter for resizing'] = 'bicubic'
  max_pixels: Annotated[
    int,
    Range(64, 89_478_485),  # Pillow does not open larger files.
    'maximum number of pixels of a file; a larger file is not decoded',
  ] = MAX_PIXELS
  fast_decode: Annotated[
    bool, 'decode JPEG files at a fraction of their size; pixels differ'
  ] = False
  allow_overlap: Annotated[
    bool, 'allow a domain, or identical files, in both sources and targets'
  ] = False
  world_seed: Annotated[
    int, SEED, 'random seed of synthetic images and random splits'
  ] = 0
  identities: Annotated[
    int, Range(1), 'synthetic: number of identities of a source domain'
  ] = 48
  cameras: Annotated[
    int, Range(0), 'synthetic: number of visible cameras of every domain'
  ] = 4
  infrared: Annotated[
    int, Range(0), 'synthetic: number of infrared cameras of every domain'
  ] = 0
  brightness_correlation: Annotated[
    float,
    Range(0, 1),
    "synthetic: weight of a garment's visible brightness in its infrared "
    'reflectance; the rest is random',
  ] = 0.0
  shots: Annotated[
    int, Range(1), 'synthetic: number of images of an identity per camera'
  ] = 4
  target_identities: Annotated[
    int, Range(1), 'synthetic: number of identities of a target domain'
  ] = 60
  direction: Annotated[
    Direction, 'visible-infrared: modality of queries, then of the gallery'
  ] = 'infrared-visible'
  search: Annotated[
    Literal['all', 'indoor'], 'SYSU-MM01: cameras of the gallery'
  ] = 'all'
  shots_per_camera: Annotated[
    int,
    Range(1),
    'SYSU-MM01: gallery images per camera, 1 (single-shot) or 10 (multi-shot)',
  ] = 1
  gallery_sampling: Annotated[
    Literal['agw', 'official'], 'SYSU-MM01: sampling of galleries'
  ] = 'agw'
  trials: Annotated[
    int, Range(1, 10), 'SYSU-MM01, LLCM: number of random galleries'
  ] = 10
  target_shots: Annotated[
    int,
    Range(2),
    'synthetic: images of an identity per camera of a target; the first is a '
    'query, the others are in the gallery',
  ] = 2


@dataclasses.dataclass(frozen=True)
class Model:
  """The network."""

  name: Annotated[
    NetworkName, NETWORK, 'backbone; resnet32 is the network for CIFAR'
  ] = 'resnet50'
  variant: Annotated[
    VariantName, 'modification of the backbone by a published method'
  ] = 'plain'
  modality_specific_stages: Annotated[
    int,
    Range(0, 5),
    'number of modality-specific stages of the backbone, starting at the stem',
  ] = 0
  width: Annotated[
    float, Range(1 / 64, 16), 'multiplier of the channels of a ResNet'
  ] = 1.0
  small_stem: Annotated[
    bool, 'use a 3x3 stem without pooling, for small images'
  ] = False
  last_stride: Annotated[
    int, Range(1, 2), 'stride of the last ResNet stage'
  ] = 1
  features: Annotated[
    tuple[int, ...], Range(0), "channels of the convnet's blocks"
  ] = (32, 64, 128, 128)
  pool: Annotated[Pool, 'pooling of the feature maps'] = 'gap'
  neck: Annotated[
    NeckKind,
    'layers between feature and embedding; bn has no scale and bias, bnneck '
    'has both',
  ] = 'bn'
  bottleneck: Annotated[
    int, Range(1), 'number of features of the bottleneck and mapping necks'
  ] = 512
  dropout: Annotated[
    float, Range(0, 0.999), 'dropout rate of the bottleneck and mapping necks'
  ] = 0.5
  classifier_bias: Annotated[
    bool, 'whether the identity classifier has a bias'
  ] = False
  dtype: Annotated[
    DType,
    'type of computation; parameters, statistics and losses are float32',
  ] = 'float32'
  pretrained: Annotated[
    str, 'path of torchvision weights in a .safetensors file'
  ] = ''


@dataclasses.dataclass(frozen=True)
class Local:
  """Batches of a client in a round."""

  sampler: Annotated[
    SamplerName,
    'sampler of batches; uniform shuffles, pk_modality and pk_caj are '
    'visible-infrared',
  ] = 'uniform'
  batch: Annotated[int, Range(2), 'number of images in a step'] = 32
  epochs: Annotated[
    int, Range(1), "number of passes over a client's images in a round"
  ] = 1
  steps: Annotated[
    int,
    Range(0),
    'number of steps of a round for clients of any size; 0 uses epochs',
  ] = 0
  identities: Annotated[
    int,
    Range(2),
    'pk: number of identities in a batch, with batch / identities images each',
  ] = 16
  cross_camera: Annotated[bool, 'pk: prefer images of other cameras'] = True
  drop_last: Annotated[
    bool, 'drop a batch that is not full, unless it is the only one'
  ] = True
  accumulate: Annotated[
    bool, 'make one update per round with the gradient of all images'
  ] = False
  data_pass_batch: Annotated[
    int, Range(1), 'number of images in a step of a data pass'
  ] = 64


@dataclasses.dataclass(frozen=True)
class Optim:
  """The optimiser of clients and its learning rate."""

  name: Annotated[OptimizerName, 'optimiser'] = 'sgd'
  lr: Annotated[
    float, Range(0), 'learning rate before schedule and multipliers'
  ] = 0.05
  momentum: Annotated[float, Range(0, 0.9999), 'sgd: momentum'] = 0.9
  nesterov: Annotated[bool, 'sgd: use Nesterov momentum'] = True
  weight_decay: Annotated[
    float, Range(0), 'weight decay of the parameters that get a gradient'
  ] = 5e-4
  lr_multipliers: Annotated[
    tuple[tuple[str, float], ...],
    Regex(),
    'pairs of a regular expression of parameter names and a factor of their '
    'learning rate',
  ] = ()
  schedule: Annotated[Schedule, 'learning rate schedule by global round'] = (
    'constant'
  )
  milestones: Annotated[
    tuple[float, ...],
    Range(0),
    'step: rounds at which the rate is multiplied by gamma; values below 1 are '
    'fractions of the number of rounds',
  ] = ()
  gamma: Annotated[float, Range(0), 'step: factor of the rate'] = 0.1
  points: Annotated[
    tuple[tuple[float, float], ...],
    'linear: pairs of a round and a factor of the rate',
  ] = ()
  warmup: Annotated[
    int, Range(0), 'number of rounds with a linear increase of the rate'
  ] = 0
  schedule_per_step: Annotated[
    bool, 'change the rate within a round instead of once per round'
  ] = False
  reset_each_round: Annotated[
    bool, 'start every round with a new optimiser state'
  ] = True


@dataclasses.dataclass(frozen=True)
class Loss:
  """The loss of clients, to which components add."""

  identity: Annotated[float, Range(0), 'weight of the cross-entropy'] = 1.0
  label_smoothing: Annotated[
    float, Range(0, 0.999), "label smoothing over a client's own identities"
  ] = 0.0
  triplet: Annotated[float, Range(0), 'weight of the hard triplet loss'] = 0.0
  margin: Annotated[float, Range(0), 'margin of the hard triplet loss'] = 0.5
  triplet_on: Annotated[
    Feature,
    'features of the hard triplet loss: after (embedding) or before (feature) '
    'the neck',
  ] = 'embedding'
  circle: Annotated[
    float, Range(0), 'weight of the circle loss on embeddings'
  ] = 0.0
  circle_margin: Annotated[float, Range(0), 'margin of the circle loss'] = 0.45
  circle_gamma: Annotated[float, Range(0), 'scale of the circle loss'] = 64.0
  weighted_triplet: Annotated[
    float, Range(0), "weight of AGW's triplet loss on features"
  ] = 0.0
  weighted_squared: Annotated[bool, "use CAJ's form of AGW's triplet loss"] = (
    False
  )


@dataclasses.dataclass(frozen=True)
class Augment:
  """Random augmentation of training images."""

  pad: Annotated[
    int, Range(0), 'zero padding in pixels before a random crop'
  ] = 4
  flip: Annotated[float, Range(0, 1), 'probability of mirroring'] = 0.5
  erase: Annotated[float, Range(0, 1), 'probability of erasing a rectangle'] = (
    0.0
  )
  erase_fill: Annotated[
    tuple[float, ...],
    'fill value of the rectangle after normalisation, one per channel; empty '
    'means zeros',
  ] = ()
  erase_area: Annotated[
    tuple[float, ...],
    'smallest and largest area of the rectangle as a fraction of the image',
  ] = (0.02, 0.4)
  erase_tries: Annotated[
    int,
    Range(1, 1000),
    'maximum number of rectangles that are sampled until one fits',
  ] = 1
  grey: Annotated[
    float,
    Range(0, 1),
    'probability of conversion to grey, before normalisation',
  ] = 0.0
  channel: Annotated[
    float, Range(0, 1), 'probability that one channel replaces all'
  ] = 0.0
  channel_kinds: Annotated[
    Kind,
    'channels that can replace all channels, including luminance',
  ] = 'exchange'
  infrared: Annotated[
    Infrared,
    'colour augmentation of infrared images: same as visible images, of CAJ '
    '(adapt) or with rotated hues (hue)',
  ] = 'same'
  copies: Annotated[
    Literal['', Kind], 'pk_caj: colour change of the second third of a batch'
  ] = ''


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Tests during and after training."""

  every: Annotated[
    int,
    Range(1),
    'rounds between evaluations; the first and last rounds are always '
    'evaluated',
  ] = 5
  protocol: Annotated[
    Literal['', ProtocolName],
    "evaluation protocol; empty means the target's own",
  ] = ''
  rerank: Annotated[bool, 'use k-reciprocal re-ranking'] = False
  metric: Annotated[Metric, 'distance between features'] = 'euclidean'
  feature: Annotated[
    Feature,
    'ranked feature: after (embedding) or before (feature) the neck',
  ] = 'embedding'
  report_both_neck_features: Annotated[
    bool, 'evaluate the other feature as well'
  ] = False
  batch_stats: Annotated[
    Literal['running', 'source'],
    'moments of batch normalisation; source re-estimates them at the tested '
    "weights on the clients' own images",
  ] = 'running'
  flip: Annotated[
    bool, "average an image's feature with that of its mirror image"
  ] = False
  ranks: Annotated[
    tuple[int, ...], Range(1), 'ranks of the cumulative match curve'
  ] = (1, 5, 10)
  batch: Annotated[int, Range(1), 'number of images on a device at a time'] = (
    128
  )
  ensemble: Annotated[
    tuple[Literal['concat', 'average'], ...],
    "additional ensembles of the clients' models to evaluate",
  ] = ()
  ensemble_norm: Annotated[
    bool, 'concat: scale the concatenated features to unit length first'
  ] = True


@dataclasses.dataclass(frozen=True)
class Execution:
  """Use of devices and memory by a run."""

  deterministic: Annotated[
    bool, 'produce the same bits on 1, 2, 4 and 8 devices'
  ] = True
  width: Annotated[
    int,
    Range(0),
    'number of clients vmapped at a time, 0 means all; values other than 1 are '
    'not deterministic',
  ] = 1
  devices: Annotated[
    int, Range(0), 'number of devices; 0 means at most one per client'
  ] = 0
  image_budget_mb: Annotated[
    float, Range(0), 'limit of images on a device in MB; 0 means no limit'
  ] = 0.0
