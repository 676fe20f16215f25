"""The fields of a configuration that do not belong to components.

`Run` has the fields at the top level; every other class is the group of its
name. The fields of components are declared next to their `make`.
"""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax.core.options import Mark, Range, Regex
from fedreid_jax.core.plugins import EVALUATOR, NETWORK, SOURCE
from fedreid_jax.core.secret import Origin
from fedreid_jax.data import names
from fedreid_jax.data.augment import Infrared, Kind
from fedreid_jax.data.client_split import ClientSplit, Labels
from fedreid_jax.data.datasets.records import Direction
from fedreid_jax.data.decoder import MAX_PIXELS, Resample
from fedreid_jax.data.poison import Poison
from fedreid_jax.data.sampling import SamplerName
from fedreid_jax.data.synthetic import versions
from fedreid_jax.evaluation.distances import Metric
from fedreid_jax.evaluation.evaluators import EvaluatorName
from fedreid_jax.evaluation.protocols import Precision, ProtocolName
from fedreid_jax.method.aggregation import BatchStatsRule
from fedreid_jax.method.optimizers import OptimizerName, Schedule
from fedreid_jax.models.layers.norm import NormKind
from fedreid_jax.models.networks import DType, NetworkName, VariantName
from fedreid_jax.models.reid import NeckKind, Pool

Natural = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
SEED = Range(0, 2**31 - 1)
Feature = Literal['embedding', 'feature']
ClientMetrics = Literal['auto', 'lines', 'files']
Tracker = Literal['csv', 'tensorboard', 'mlflow', 'wandb']
PIXELS = Range(8, 4096)


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
  rounds: Annotated[Positive, 'number of communication rounds'] = 20
  fraction: Annotated[
    float,
    Range(1e-9, 1),
    'fraction of the clients in a round; their number is rounded up',
  ] = 1.0
  cohort: Annotated[
    Literal['fixed', 'poisson'],
    'sampling of the clients of a round: as many as fraction says, or each '
    'with the probability fraction',
  ] = 'fixed'
  cohort_max: Annotated[
    Natural, 'poisson: largest number of clients in a round, 0 for all clients'
  ] = 0
  batch_stats_rule: Annotated[
    BatchStatsRule, 'aggregation of running statistics'
  ] = 'average'
  checkpoint_every: Annotated[
    Positive,
    'rounds between checkpoints; the last round and signals also save one',
  ] = 5
  start_from: Annotated[
    str, 'work directory of a run whose last models initialise this run'
  ] = ''
  track: Annotated[
    tuple[Tracker, ...],
    Mark.REPORTING,
    'trackers that receive the metrics and ranked lists, beside metrics.jsonl',
  ] = ()
  track_images: Annotated[
    Natural,
    Mark.REPORTING,
    'number of queries of each target whose ranked lists the trackers receive '
    'as images',
  ] = 4
  client_metrics: Annotated[
    ClientMetrics,
    Mark.REPORTING,
    'metrics of each client: in metrics.jsonl and in trackers (lines) or in '
    'client-metrics/ROUND.npz (files); auto writes lines for at most 16 '
    'clients in a round, and only a summary for more',
  ] = 'auto'


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The origin of the draws that a guarantee of privacy rests on."""

  secret: Annotated[
    Origin,
    'origin of noise, masks and private samples: system draws 256 bits that '
    'the run keeps in a file of its own; seed is for reproducible studies and '
    'protects nobody, because a seed can be guessed',
  ] = 'system'


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """Tests during and after training."""

  every: Annotated[
    Positive,
    'rounds between evaluations; the first and last rounds are always '
    'evaluated',
  ] = 5
  validation: Annotated[
    float,
    Range(0, 0.5),
    'fraction of the identities of each training domain that are not trained '
    'on and choose the best round; 0 chooses it by the targets',
  ] = 0.0
  protocol: Annotated[
    Literal['', ProtocolName],
    "evaluation protocol; empty means the target's own",
  ] = ''
  precision: Annotated[
    Literal['', Precision], "average precision; empty means the protocol's own"
  ] = ''
  rerank: Annotated[bool, 'use k-reciprocal re-ranking'] = False
  metric: Annotated[Metric, 'distance between features'] = 'euclidean'
  feature: Annotated[
    Feature, 'ranked feature: after (embedding) or before (feature) the neck'
  ] = 'embedding'
  report_both_neck_features: Annotated[
    bool, 'evaluate the other feature as well'
  ] = False
  batch_stats: Annotated[
    Literal['running', 'source', 'modality', 'target', 'stream'],
    'moments of batch normalisation; source re-estimates them at the tested '
    "weights on the clients' own images, modality on those of the modality of "
    'each test image, target on the gallery of the target, and stream in the '
    'order of the gallery',
  ] = 'running'
  moments_batch: Annotated[
    int,
    Range(2),
    'target, stream: number of gallery images whose moments are measured at a '
    'time',
  ] = 64
  moments_momentum: Annotated[
    Share,
    'stream: weight of the moments of these images; those before have the rest',
  ] = 0.1
  camera_norm: Annotated[
    Literal['', 'centre', 'standardise'],
    'features of a target without the mean of those of their camera, and '
    '(standardise) with the same standard deviation for all cameras; then of '
    'length 1',
  ] = ''
  flip: Annotated[
    bool, "average an image's feature with that of its mirror image"
  ] = False
  ranks: Annotated[
    tuple[int, ...], Range(1), 'ranks of the cumulative match curve'
  ] = (1, 5, 10)
  batch: Annotated[Positive, 'number of images on a device at a time'] = 128
  ensemble: Annotated[
    tuple[Literal['concat', 'average'], ...],
    "additional ensembles of the clients' models to evaluate",
  ] = ()
  ensemble_norm: Annotated[
    bool, 'concat: scale the concatenated features to unit length first'
  ] = True
  extra: Annotated[
    tuple[EvaluatorName, ...],
    EVALUATOR,
    'additional evaluators of every target; plug-ins are given by their module '
    'or entry point',
  ] = ()


@dataclasses.dataclass(frozen=True)
class Availability:
  """Simulated time: who can take part, and how long it takes."""

  mean: Annotated[
    float, Range(1e-3, 1), 'mean probability that a client can take part'
  ] = 1.0
  swing: Annotated[
    Share, 'how far this probability rises and falls over the day of a client'
  ] = 0.0
  file: Annotated[
    str,
    'CSV file of client, from_s and until_s in seconds, instead of a '
    'probability',
  ] = ''
  step_s: Annotated[
    NonNegative, 'seconds of a local step on the median device'
  ] = 0.0
  speed_spread: Annotated[
    float, Range(0, 5), 'standard deviation of the logarithm of the speed'
  ] = 0.0
  bandwidth: Annotated[
    NonNegative,
    'bytes a second of the median device; 0 means that transfers take no time',
  ] = 0.0
  bandwidth_spread: Annotated[
    float, Range(0, 5), 'standard deviation of the logarithm of the bandwidth'
  ] = 0.0
  deadline_s: Annotated[
    NonNegative, 'seconds after which a round ends; 0 means no deadline'
  ] = 0.0
  over_selection: Annotated[
    float,
    Range(0, 10),
    'additional clients of a round, as a fraction; the first to arrive are '
    'used',
  ] = 0.0
  in_flight: Annotated[
    Natural, 'fedbuff: clients that train at a time, without rounds'
  ] = 0


@dataclasses.dataclass(frozen=True)
class Execution:
  """Use of devices and memory by a run."""

  deterministic: Annotated[
    bool, 'produce the same bits on 1, 2, 4 and 8 devices'
  ] = True
  width: Annotated[
    Natural,
    'number of clients vmapped at a time, 0 means all; values other than 1 are '
    'not deterministic',
  ] = 1
  devices: Annotated[
    Natural, 'number of devices; 0 means at most one per client'
  ] = 0
  store: Annotated[
    Literal['auto', 'memory', 'disk'],
    Mark.REPORTING,
    'states of the clients between rounds: auto keeps them in memory for one '
    'process and at most 1,024 clients and 2 GiB, otherwise in files of the '
    'work directory',
  ] = 'auto'
  image_budget_mb: Annotated[
    NonNegative,
    'limit of images on a device in MB; 0 means a quarter of its memory',
  ] = 0.0
  stack_budget_mb: Annotated[
    NonNegative,
    'limit of the uploads of a round in MB on a device, of a method that '
    'needs all of them at once; uploads of other methods are added as clients '
    'end',
  ] = 512.0


@dataclasses.dataclass(frozen=True)
class Data:
  """Images and their split over clients."""

  source: Annotated[
    Literal[versions.Name, 'folder', 'datasets'],
    SOURCE,
    'source of the images; synthetic is the newest version of the rendered '
    'world',
  ] = versions.UNVERSIONED
  root: Annotated[
    str,
    'folder: directory of the domains or of one data set; datasets: directory '
    'of one data set or of all',
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
  num_clients: Annotated[Positive, 'iid, dirichlet: number of clients'] = 4
  concentration: Annotated[
    float,
    Range(1e-3),
    "dirichlet: concentration of each class's distribution over the clients",
  ] = 0.5
  labels: Annotated[Labels, 'label space of a shared classifier'] = ''
  unlabelled: Annotated[
    tuple[str, ...],
    "domains whose clients have no labels, or 'all': a label is then the index "
    'of an image, and identities are used for metrics of clusters only',
  ] = ()
  sources: Annotated[
    tuple[str, ...],
    'domains to train on, one client per domain; empty means all remaining '
    'domains',
  ] = ()
  targets: Annotated[
    tuple[str, ...],
    'held-out domains for evaluation; synthetic: NAME:shift=KIND has the '
    'persons of NAME after a shift of one kind (colour, resolution, viewpoint, '
    'background, clothing, noise, all)',
  ] = ()
  held_out: Annotated[
    float,
    Range(0, 0.9),
    'folder: above 0, the last domain is the target if none is given; for a '
    'single data set this fraction of its identities is held out',
  ] = 0.0
  public: Annotated[
    str, 'domain of unlabelled images that the server and all clients can use'
  ] = ''
  query: Annotated[
    str,
    "folder: queries of a target: 'random' (an image of each identity, by each "
    "camera with several), 'first_per_camera', 'first' (of each identity) or "
    "'camera=NAME+NAME'",
  ] = 'first_per_camera'
  identity_pattern: Annotated[
    str,
    Regex(1),
    'folder: regular expression of the path within a domain; its group is the '
    'identity',
  ] = names.IDENTITY
  camera_pattern: Annotated[
    str,
    Regex(1, ('', names.AUTO)),
    'folder: regular expression of the path within a domain; its group is the '
    "camera. 'auto' recognises 0001_c1s1_1.jpg, x_c1.jpg, cam1/x.jpg and "
    "x_01.jpg. Without a match, or if it is '', there are no cameras",
  ] = names.NUMBER
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
  colour_as: Annotated[
    tuple[Literal['grey', 'inverted'], ...],
    'folder: conversions that colour images may undergo; channels=grey and '
    'invert=True add theirs if a user writes them, not if a preset sets them',
  ] = ()
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
  poison: Annotated[
    Poison,
    'attack by the images of some clients: flip, shuffle and merge change '
    'identities, backdoor teaches a trigger; for measurements of robustness',
  ] = ''
  poisoned: Annotated[
    tuple[str, ...], 'names of the clients with poisoned images'
  ] = ()
  trigger_share: Annotated[
    Share, 'backdoor: share of the images with the trigger'
  ] = 0.3
  camera_spread: Annotated[
    float,
    Range(1, 8),
    'synthetic: factor of the differences between cameras in colour, exposure, '
    'contrast, resolution and noise',
  ] = 1.0
  presence: Annotated[
    float,
    Range(0.05, 1),
    "synthetic: fraction of a source domain's identities that every second "
    'camera sees; the other cameras see all',
  ] = 1.0
  identities: Annotated[
    Positive, 'synthetic: number of identities of a source domain'
  ] = 48
  cameras: Annotated[
    Natural, 'synthetic: number of visible cameras of every domain'
  ] = 4
  infrared: Annotated[
    Natural, 'synthetic: number of infrared cameras of every domain'
  ] = 0
  brightness_correlation: Annotated[
    Share,
    "synthetic: weight of a garment's visible brightness in its infrared "
    'reflectance; the rest is random',
  ] = 0.0
  shots: Annotated[
    Positive, 'synthetic: number of images of an identity per camera'
  ] = 4
  target_identities: Annotated[
    Positive, 'synthetic: number of identities of a target domain'
  ] = 60
  direction: Annotated[
    Direction, 'visible-infrared: modality of queries, then of the gallery'
  ] = 'infrared-visible'
  search: Annotated[
    Literal['all', 'indoor'], 'SYSU-MM01: cameras of the gallery'
  ] = 'all'
  shots_per_camera: Annotated[
    Positive,
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
class Augment:
  """Random augmentation of training images."""

  pad: Annotated[Natural, 'zero padding in pixels before a random crop'] = 4
  enlarge: Annotated[
    Share, 'probability of enlarging by an eighth before a random crop'
  ] = 0.0
  flip: Annotated[Share, 'probability of mirroring'] = 0.5
  erase: Annotated[Share, 'probability of erasing a rectangle'] = 0.0
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
    Share, 'probability of conversion to grey, before normalisation'
  ] = 0.0
  channel: Annotated[Share, 'probability that one channel replaces all'] = 0.0
  channel_kinds: Annotated[
    Kind, 'channels that can replace all channels, including luminance'
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
class Model:
  """The network."""

  name: Annotated[
    NetworkName,
    NETWORK,
    'backbone; resnet32 is the network for CIFAR, and vit a transformer',
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
    tuple[int, ...], Range(1), "channels of the convnet's blocks"
  ] = (32, 64, 128, 128)
  pool: Annotated[Pool, 'pooling of the feature maps'] = 'gap'
  neck: Annotated[
    NeckKind,
    'layers between feature and embedding; bn has no scale and bias, bnneck '
    'has both',
  ] = 'bn'
  norm: Annotated[
    NormKind,
    'normalisation in training: by the batch, by the frozen statistics of '
    'model.pretrained, or of each image over groups of channels',
  ] = 'batch'
  bottleneck: Annotated[
    Positive, 'number of features of the bottleneck and mapping necks'
  ] = 512
  dropout: Annotated[
    float, Range(0, 0.999), 'dropout rate of the bottleneck and mapping necks'
  ] = 0.5
  classifier_bias: Annotated[
    bool, 'whether the identity classifier has a bias'
  ] = False
  dtype: Annotated[
    DType,
    'type of computation: auto is bfloat16 on a TPU or GPU and float32 on a '
    'CPU; parameters, statistics and losses are float32',
  ] = 'auto'
  tune: Annotated[
    Literal['', 'lora', 'adapter'],
    'parameters that are added to the kernels of the backbone, which is not '
    'trained itself: low-rank matrices or 1x1 convolutions; empty for none',
  ] = ''
  tune_at: Annotated[
    str, 'regular expression of kernels, .*attn.* for attention'
  ] = '.*'
  tune_rank: Annotated[Positive, 'lora: rank'] = 4
  tune_alpha: Annotated[
    float, Range(0), 'lora: weight of the added matrix, divided by the rank'
  ] = 8.0
  trained: Annotated[
    str,
    'regular expression of the parameters of the backbone that are trained '
    'themselves, .*(bias|prompt) for example; empty: all, or none with tune',
  ] = ''
  pretrained: Annotated[
    str,
    "name of weights of this package ('convnet-synthetic', "
    "'resnet18-synthetic', 'vit-synthetic'), or path of a .safetensors file, "
    'also of torchvision, timm, torchreid and others (docs/export.md)',
  ] = ''


@dataclasses.dataclass(frozen=True)
class Local:
  """Batches of a client in a round."""

  sampler: Annotated[
    SamplerName,
    'sampler of batches; uniform shuffles, pk_modality and pk_caj are '
    'visible-infrared, poisson and poisson_pk draw each image or identity '
    'independently',
  ] = 'uniform'
  batch: Annotated[
    int, Range(2), 'number of images in a step, on average if it is random'
  ] = 32
  epochs: Annotated[
    Positive, "number of passes over a client's images in a round"
  ] = 1
  steps: Annotated[
    Natural, 'number of steps of a round for clients of any size; 0 uses epochs'
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
    Positive, 'number of images in a step of a data pass'
  ] = 64


@dataclasses.dataclass(frozen=True)
class Optim:
  """The optimiser of clients and its learning rate."""

  name: Annotated[OptimizerName, 'optimiser'] = 'sgd'
  lr: Annotated[
    NonNegative, Mark.STRENGTH, 'learning rate before schedule and multipliers'
  ] = 0.05
  momentum: Annotated[float, Range(0, 0.9999), 'sgd: momentum'] = 0.9
  nesterov: Annotated[bool, 'sgd: use Nesterov momentum'] = True
  weight_decay: Annotated[
    NonNegative, 'weight decay of the parameters that get a gradient'
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
    'fractions of the rounds of the schedule',
  ] = ()
  schedule_rounds: Annotated[
    Natural,
    'step, cosine: number of rounds of the schedule, after which the rate '
    'stays; 0 for the rounds of the run',
  ] = 0
  gamma: Annotated[NonNegative, 'step: factor of the rate'] = 0.1
  points: Annotated[
    tuple[tuple[float, float], ...],
    'linear: pairs of a round and a factor of the rate',
  ] = ()
  warmup: Annotated[
    Natural, 'number of rounds with a linear increase of the rate'
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

  identity: Annotated[NonNegative, 'weight of the cross-entropy'] = 1.0
  label_smoothing: Annotated[
    float, Range(0, 0.999), "label smoothing over a client's own identities"
  ] = 0.0
  triplet: Annotated[
    NonNegative, Mark.STRENGTH, 'weight of the hard triplet loss'
  ] = 0.0
  margin: Annotated[NonNegative, 'margin of the hard triplet loss'] = 0.5
  triplet_on: Annotated[
    Feature,
    'features of the hard triplet loss: after (embedding) or before (feature) '
    'the neck',
  ] = 'embedding'
  circle: Annotated[
    NonNegative, Mark.STRENGTH, 'weight of the circle loss on embeddings'
  ] = 0.0
  circle_margin: Annotated[NonNegative, 'margin of the circle loss'] = 0.45
  circle_gamma: Annotated[NonNegative, 'scale of the circle loss'] = 64.0
  weighted_triplet: Annotated[
    NonNegative, Mark.STRENGTH, "weight of AGW's triplet loss on features"
  ] = 0.0
  weighted_squared: Annotated[bool, "use CAJ's form of AGW's triplet loss"] = (
    False
  )
