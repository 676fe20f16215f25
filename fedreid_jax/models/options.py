"""The fields of `model`: the network."""

import dataclasses
from typing import Annotated, Literal, TypeAlias

from fedreid_jax.core.options import Mark, Positive, Range
from fedreid_jax.core.plugins import NETWORK, available
from fedreid_jax.models import backbones, resnet
from fedreid_jax.models.layers.norm import NormKind
from fedreid_jax.models.reid import NeckKind, Pool

NETWORKS = (*resnet.DEPTHS, 'convnet', *available(backbones))
NetworkName: TypeAlias = Literal[NETWORKS]  # pyright: ignore
DType = Literal['auto', 'float32', 'bfloat16']


@dataclasses.dataclass(frozen=True)
class Model:
  """The network."""

  name: Annotated[
    NetworkName | str,
    NETWORK,
    'backbone; resnet32 is the network for CIFAR, and vit a transformer',
  ] = 'resnet50'
  modality_specific_stages: Annotated[
    int,
    Range(0, 5),
    'number of modality-specific stages of the backbone, starting at the stem',
  ] = 0
  width: Annotated[
    float,
    Range(1 / 64, 16),
    'multiplier of the channels of a ResNet or mobilenet_v2',
  ] = 1.0
  small_stem: Annotated[
    bool, 'use a 3x3 stem without pooling, for small images'
  ] = False
  last_stride: Annotated[
    int, Range(1, 2), 'stride of the last stage of a ResNet or mobilenet_v2'
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
    Mark.PRETRAINED,
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
    Mark.PRETRAINED,
    'regular expression of the parameters of the backbone that are trained '
    'themselves, .*(bias|prompt) for example; empty: all, or none with tune',
  ] = ''
  pretrained: Annotated[
    str,
    'name of weights of this package (fedreid list weights), or path of a '
    '.safetensors file, also of torchvision, timm, torchreid and others '
    '(docs/export.md)',
  ] = ''
