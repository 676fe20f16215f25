"""Builds networks from configurations, and wraps them as pure functions."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Float, Key

from fedreid_jax import errors
from fedreid_jax.core import plugins, trees, types
from fedreid_jax.core.types import Array, Flat, Number
from fedreid_jax.models import backbones, convnet, forward, reid, resnet
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.options import NETWORKS, DType, Model

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


def dtype(chosen: DType, platform: str) -> DType:
  """Returns the type of computation of `model.dtype` on a platform of JAX.

  bfloat16 takes half of the memory, and the units of a TPU or GPU for products
  compute it faster; a CPU without such units gains nothing.
  """
  if chosen != 'auto':
    return chosen
  return 'float32' if platform == 'cpu' else 'bfloat16'


def build(
  config: Model,
  num_classes: int,
  options: Mapping[str, Any] | None = None,
  changes: Sequence[Callable[[nn.Module], nn.Module]] = (),
) -> nn.Module:
  """Builds the network of a validated `config.model`.

  Args:
    num_classes: identities of the classifier, padded to the largest client.
    options: hyper-parameters of a network in a separate module.
    changes: those of the components (`Component.network`), in order.

  Raises:
    ConfigError: if a change, the norm or the module does not fit.
  """
  # Also for plug-ins, which get the configuration.
  kind = dtype(config.dtype, jax.default_backend())
  config = dataclasses.replace(config, dtype=kind)
  network: nn.Module = reid.ReIDNet(
    _backbone(config, options or {}),
    num_classes,
    config.pool,
    config.neck,
    config.bottleneck,
    config.dropout,
    config.classifier_bias,
    config.norm,
  )
  return changed(network, changes)


def changed(
  network: nn.Module, changes: Sequence[Callable[[nn.Module], nn.Module]]
) -> nn.Module:
  """Applies the changes of the components to a network, in order.

  Raises:
    ConfigError: if a change does not fit.
  """
  for change in changes:
    network = change(network)
    forward.check(network, 'components')
  return network


def _backbone(config: Model, options: Mapping[str, Any]) -> nn.Module:
  kind = DTYPES[config.dtype]
  is_resnet = config.name in resnet.DEPTHS
  if not is_resnet and config.modality_specific_stages:
    raise errors.ConfigError(
      f'{config.name} has no modality-specific stages',
      'model.name',
      f'one of {", ".join(resnet.DEPTHS)}',
    )
  if is_resnet:
    return resnet.ResNet(
      config.name,
      config.width,
      config.small_stem,
      config.last_stride,
      kind,
      config.modality_specific_stages,
      norm_kind=config.norm,
    )
  if config.name == 'convnet':
    return convnet.ConvNet(tuple(config.features), kind, norm_kind=config.norm)
  return _of_module(config, options)


def _of_module(config: Model, options: Mapping[str, Any]) -> nn.Module:
  """Builds the backbone of a module of `backbones` or of a plug-in."""
  if config.name in plugins.available(backbones):
    module = f'{backbones.__name__}.{config.name}'
  else:
    module = plugins.module_of(config.name, plugins.NETWORK, NETWORKS)
  made = plugins.call(module, plugins.NETWORK, options, config)
  if not isinstance(made, nn.Module):
    raise errors.ConfigError(
      f'{config.name} makes {type(made).__name__}, not a Flax module',
      'model.name',
      'return a flax.linen.Module, see docs/extend.md',
    )
  forward.check(made, 'model.name')
  if config.norm != 'batch' and not hasattr(made, 'norm_kind'):
    raise errors.ConfigError(
      f'{config.name} has batch normalisation only',
      'model.norm',
      "set it to 'batch', or use a convnet, mobilenet_v2 or a ResNet",
    )
  return made


def wrap(
  module: nn.Module,
  image_shape: tuple[int, int, int],
) -> types.Model:
  """Wraps a network as a `types.Model`, which also takes NumPy arrays.

  Args:
    module: callable as `module(images, ctx, num_identities)` with the context
      `forward.ForwardCtx`; it returns `types.Outputs` and has a method
      `classify`.
    image_shape: `(H, W, ch)` for the initialisation.

  Raises:
    ConfigError: if the module is called in another way.
  """
  forward.check(module, 'the network')

  def init(key: Key[Array, '']) -> Flat:
    params_key, dropout_key = jax.random.split(key)
    rngs = {'params': params_key, 'dropout': dropout_key}
    images = jnp.zeros((2, *image_shape), jnp.float32)
    ctx = ForwardCtx(train=False)
    return trees.flatten(module.init(rngs, images, ctx, None))

  # `about` are the fields of a `ForwardCtx`, also as NumPy arrays.
  def apply(
    variables: Flat,
    images: Float[Array | np.ndarray, 'M H W ch'],
    *,
    key: Key[Array, ''] | None = None,
    num_identities: Number | None = None,
    **about: Any,
  ) -> tuple[types.Outputs, Flat]:
    variables, images = _arrays(variables, images)
    ctx = _context(**about)
    _, batch_stats = trees.trainable(variables)
    outputs, updated = module.apply(
      trees.unflatten(variables),
      images,
      ctx,
      num_identities,
      # A network without this key trains without dropout.
      rngs={} if key is None else {'dropout': key},
      mutable=['batch_stats'] if ctx.train else [],
    )
    # In evaluation nothing is updated, and the old statistics are returned.
    return outputs, batch_stats | trees.flatten(updated)

  def measure(
    variables: Flat,
    images: Float[Array | np.ndarray, 'M H W ch'],
    *,
    num_identities: Number | None = None,
    **about: Any,
  ) -> tuple[types.Outputs, dict[str, Any]]:
    variables, images = _arrays(variables, images)
    outputs, found = module.apply(
      trees.unflatten(variables),
      images,
      _context(train=False, **about),
      num_identities,
      mutable=['moments'],
    )
    # Names are 'moments/LAYER/batch'. Networks without batch statistics have no
    # such collection.
    layers = trees.flatten(found['moments']) if found else {}
    return outputs, {n.removesuffix('/batch'): x for n, x in layers.items()}

  def classify(
    variables: Flat,
    embedding: Float[Array | np.ndarray, 'B D'],
    num_identities: Number | None = None,
  ) -> Any:
    variables, embedding = _arrays(variables, embedding)
    return module.apply(
      trees.unflatten(variables),
      embedding,
      num_identities,
      method='classify',
    )

  return types.Model(init, apply, measure, classify)


def _context(train: bool, **about: Any) -> ForwardCtx:
  return ForwardCtx(train, **_arrays(about)[0])


def _arrays(*trees: Any) -> Any:
  return jax.tree.map(jnp.asarray, trees)
