"""Changes of a network, for components of published methods.

A component changes the network with `Component.network`. The network is a
`reid.ReIDNet`, or a module around one with the attribute `network`, that an
earlier component of the method has returned.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.models import reid, resnet
from fedreid_jax.models.layers import inserted


def insert(
  network: nn.Module,
  rule: inserted.Rule,
  method: str,
  *,
  resnet_only: bool = False,
) -> nn.Module:
  """Returns the network with modules between the blocks of its backbone.

  A transformer has one place, for the map of its patches before its blocks.

  Args:
    rule: gives the module after each block; it follows those of earlier rules.
    method: name for messages.
    resnet_only: whether the rule counts on the four stages of a ResNet.

  Raises:
    ConfigError: if the backbone has no places for modules, or another
      normalisation than that of batches.
  """

  def changed(backbone: nn.Module) -> nn.Module:
    _check(backbone, method, resnet_only)
    rules: Any = getattr(backbone, 'plugins', ())
    return backbone.clone(plugins=(*rules, rule))

  return _with_backbone(network, changed)


def replace(
  network: nn.Module, kind: type[resnet.ResNet], method: str
) -> nn.Module:
  """Returns the network with another kind of ResNet of the same fields.

  Raises:
    ConfigError: if the backbone is no ResNet, or has another normalisation
      than that of batches.
  """

  def changed(backbone: nn.Module) -> nn.Module:
    _check(backbone, method, True)
    if type(backbone) is not resnet.ResNet:
      raise errors.ConfigError(
        f'{method} and another component both replace the ResNet, which is a '
        f'{type(backbone).__name__}',
        'components',
        'remove one of them',
      )
    names = [one.name for one in dataclasses.fields(resnet.ResNet) if one.init]
    own = {*names} - {'name', 'parent'}
    return kind(**{name: getattr(backbone, name) for name in own})

  return _with_backbone(network, changed)


def wrap(
  network: nn.Module, method: str, make: Callable[[reid.ReIDNet], nn.Module]
) -> nn.Module:
  """Returns `make(network)`, a module around the network.

  Raises:
    ConfigError: if an earlier component has put a module around it.
  """
  if not isinstance(network, reid.ReIDNet):
    raise errors.ConfigError(
      f'{method} and another component both put a module around the network, '
      f'which is a {type(network).__name__}',
      'components',
      'remove one of them',
    )
  return make(network)


def num_classes(network: nn.Module) -> int:
  """Returns the identities of the classifier, padding included."""
  return _net(network).num_classes


def dtype(network: nn.Module) -> Any:
  """Returns the type in which the backbone computes."""
  return _net(network).backbone.dtype


def _check(backbone: nn.Module, method: str, resnet_only: bool) -> None:
  found = type(backbone).__name__
  is_resnet = isinstance(backbone, resnet.ResNet)
  if not (is_resnet or hasattr(backbone, 'plugins') and not resnet_only):
    others = '' if resnet_only else 'convnet, mobilenet_v2, vit, '
    raise errors.ConfigError(
      f'{method} cannot change a network {found}',
      'model.name',
      f'one of {others}{", ".join(resnet.DEPTHS)}',
    )
  if getattr(backbone, 'norm_kind', 'batch') != 'batch':
    raise errors.ConfigError(
      f'the network of {method} has batch normalisation only',
      'model.norm',
      f"set it to 'batch', or remove {method!r}",
    )


def _with_backbone(
  network: nn.Module, change: Callable[[nn.Module], nn.Module]
) -> nn.Module:
  if isinstance(network, reid.ReIDNet):
    return network.clone(backbone=change(network.backbone))
  inner = _inner(network)
  return network.clone(network=_with_backbone(inner, change))


def _net(network: nn.Module) -> reid.ReIDNet:
  if isinstance(network, reid.ReIDNet):
    return network
  return _net(_inner(network))


def _inner(network: nn.Module) -> nn.Module:
  inner = getattr(network, 'network', None)
  if isinstance(inner, nn.Module):
    return inner
  raise errors.ConfigError(
    f'a component cannot change a network {type(network).__name__}',
    'components',
    'build a fedreid_jax.models.reid.ReIDNet',
  )
