"""Builds the network of a configuration."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.models import (
  alignment,
  cifar,
  convnet,
  deen,
  dns,
  head,
  non_local,
  pool,
  reid,
  resnet,
  style,
)

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
NetworkName = Literal[
  'resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet32', 'convnet'
]
VariantName = Literal[
  'plain', 'snr', 'snr_entropy', 'agw', 'dns', 'deen', 'lba'
]
DType = Literal['float32', 'bfloat16']


class Variant(NamedTuple):
  """Changes of a published network to a backbone.

  Attributes:
    plugins: `(dtype, num_classes) -> rule of modules put after blocks`.
    backbone: class that replaces `resnet.ResNet`, or None.
    resnet_only: whether it needs the stages of a ResNet.
  """

  plugins: Callable[..., Any] | None = None
  backbone: type[resnet.ResNet] | None = None
  resnet_only: bool = True


VARIANTS: dict[str, Variant] = {
  'plain': Variant(resnet_only=False),
  'snr': Variant(
    lambda dtype, num_classes: style.after_stages(), resnet_only=False
  ),
  'snr_entropy': Variant(
    lambda dtype, num_classes: style.after_stages(num_classes),
    resnet_only=False,
  ),
  'agw': Variant(lambda dtype, num_classes: non_local.plugins(dtype=dtype)),
  'dns': Variant(lambda dtype, num_classes: dns.plugins(dtype)),
  'deen': Variant(backbone=deen.DEEN),
  'lba': Variant(backbone=alignment.CMAlign),
}


def build(
  config: Any, num_classes: int, options: Mapping[str, Any] | None = None
) -> nn.Module:
  """Builds the network of a configuration.

  Args:
    config: `config.model`.
    num_classes: identities of the classifier, padded to the largest client.
    options: hyper-parameters of a network that is a plug-in.

  Raises:
    ConfigError: an unknown name, variant, pool, neck, dtype or stride, a
      variant of a network without variants, or no channels.
  """
  for field, choices in (
    ('variant', VARIANTS),
    ('pool', pool.POOLS),
    ('neck', get_args(head.NeckKind)),
    ('dtype', DTYPES),
    ('last_stride', (1, 2)),
  ):
    if config[field] not in choices:
      raise errors.ConfigError(
        f'unknown {field} {config[field]!r}',
        f'model.{field}',
        f'choose from {", ".join(map(str, choices))}',
      )
  network = reid.ReIDNet(
    _backbone(config, num_classes, options or {}),
    num_classes,
    config.pool,
    config.neck,
    config.bottleneck,
    config.dropout,
    config.classifier_bias,
  )
  if config.variant == 'dns':
    streams = 'two_stream' if config.modality_specific_stages else 'one_stream'
    return dns.DNS(network, num_classes, dns.DOMAINS[streams])
  return network


def _backbone(
  config: Any, num_classes: int, options: Mapping[str, Any]
) -> nn.Module:
  variant, dtype = VARIANTS[config.variant], DTYPES[config.dtype]
  if config.name not in resnet.DEPTHS and (
    variant.resnet_only or config.modality_specific_stages
  ):
    raise errors.ConfigError(
      f'{config.name} has no modality-specific stages and no variant '
      f'{config.variant!r}',
      'model.name',
      f'one of {", ".join(resnet.DEPTHS)}',
    )
  rule = variant.plugins(dtype, num_classes) if variant.plugins else None
  channels: tuple[int, ...]
  if config.name not in get_args(NetworkName):
    if rule:
      raise errors.ConfigError(
        f'{config.name} has no variants', 'model.variant', "set it to 'plain'"
      )
    module = plugins.module_of(
      config.name, plugins.NETWORK, get_args(NetworkName)
    )
    backbone = plugins.call(module, plugins.NETWORK, options, config)
    if not isinstance(backbone, nn.Module):
      raise errors.ConfigError(
        f'{config.name} makes {type(backbone).__name__}, not a Flax module',
        'model.name',
        'return a flax.linen.Module, see docs/plugins.md',
      )
    return backbone
  if config.name == 'convnet':
    backbone = convnet.ConvNet(tuple(config.features), dtype, rule)
    channels = backbone.features
  elif config.name == 'resnet32':
    if rule:
      raise errors.ConfigError(
        'resnet32 has no variants', 'model.variant', "set it to 'plain'"
      )
    backbone, channels = cifar.CifarResNet(dtype=dtype), (1,)
  else:
    make = variant.backbone or resnet.ResNet
    backbone = make(
      config.name,
      config.width,
      config.small_stem,
      config.last_stride,
      dtype,
      config.modality_specific_stages,
      rule,
    )
    channels = (backbone.base,)
  if not channels or min(channels) < 1:
    raise errors.ConfigError(
      f'{config.name} with channels {channels}',
      'model.width, model.features',
      'give every layer at least one channel',
    )
  return backbone
