"""The fields of the training of a client: network, batches, optimiser, loss."""

import dataclasses
from typing import Annotated

from fedreid_jax.config.groups.run import Feature
from fedreid_jax.core.options import Mark, Range, Regex
from fedreid_jax.core.plugins import NETWORK
from fedreid_jax.data.sampling import SamplerName
from fedreid_jax.method.optimizers import OptimizerName, Schedule
from fedreid_jax.models.layers.norm import NormKind
from fedreid_jax.models.networks import DType, NetworkName, VariantName
from fedreid_jax.models.reid import NeckKind, Pool


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
    str,
    "name of weights of this package ('convnet-synthetic', "
    "'resnet18-synthetic'), or path of torchvision's in a .safetensors file",
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
    float,
    Range(0),
    Mark.STRENGTH,
    'learning rate before schedule and multipliers',
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
    'fractions of the rounds of the schedule',
  ] = ()
  schedule_rounds: Annotated[
    int,
    Range(0),
    'step, cosine: number of rounds of the schedule, after which the rate '
    'stays; 0 for the rounds of the run',
  ] = 0
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
  triplet: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the hard triplet loss'
  ] = 0.0
  margin: Annotated[float, Range(0), 'margin of the hard triplet loss'] = 0.5
  triplet_on: Annotated[
    Feature,
    'features of the hard triplet loss: after (embedding) or before (feature) '
    'the neck',
  ] = 'embedding'
  circle: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the circle loss on embeddings'
  ] = 0.0
  circle_margin: Annotated[float, Range(0), 'margin of the circle loss'] = 0.45
  circle_gamma: Annotated[float, Range(0), 'scale of the circle loss'] = 64.0
  weighted_triplet: Annotated[
    float, Range(0), Mark.STRENGTH, "weight of AGW's triplet loss on features"
  ] = 0.0
  weighted_squared: Annotated[bool, "use CAJ's form of AGW's triplet loss"] = (
    False
  )
