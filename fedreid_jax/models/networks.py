"""Builds networks from configurations, and wraps them as pure functions."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Bool, Float, Int, Key

from fedreid_jax import errors
from fedreid_jax.core import plugins, trees, types
from fedreid_jax.core.types import Array, Flat, Number
from fedreid_jax.models import backbones, convnet, reid, resnet

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
NETWORKS = (*resnet.DEPTHS, 'convnet', *plugins.available(backbones))
NetworkName: TypeAlias = Literal[NETWORKS]  # pyright: ignore
DType = Literal['auto', 'float32', 'bfloat16']


def dtype(chosen: str, platform: str) -> str:
  """Returns the type of computation of `model.dtype` on a platform of JAX.

  bfloat16 takes half of the memory, and the units of a TPU or GPU for products
  compute it faster; a CPU without such units gains nothing.
  """
  if chosen != 'auto':
    return chosen
  return 'float32' if platform == 'cpu' else 'bfloat16'


def build(
  config: Any,
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
  config = copy.deepcopy(config)
  config.dtype = dtype(config.dtype, jax.default_backend())
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
  return network


def _backbone(config: Any, options: Mapping[str, Any]) -> nn.Module:
  kind = DTYPES[config.dtype]
  is_resnet = config.name in resnet.DEPTHS
  if config.norm != 'batch' and not (is_resnet or config.name == 'convnet'):
    raise errors.ConfigError(
      f'{config.name} has batch normalisation only',
      'model.norm',
      "set it to 'batch', or use a convnet or ResNet",
    )
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


def _of_module(config: Any, options: Mapping[str, Any]) -> nn.Module:
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
      'return a flax.linen.Module, see docs/plugins.md',
    )
  return made


def wrap(
  module: nn.Module,
  image_shape: tuple[int, int, int],
) -> types.Model:
  """Wraps a network as a `types.Model`, which also takes NumPy arrays.

  Args:
    module: callable as `module(images, train=, num_identities=, mask=,
      modalities=, labels=)`, returns `types.Outputs` and has a method
      `classify`. It has an argument `cameras` if its `takes_cameras` is true.
    image_shape: `(H, W, ch)` for the initialisation.
  """

  by_camera = getattr(module, 'takes_cameras', False)

  def of_cameras(cameras: Any) -> dict[str, Any]:
    if not by_camera or cameras is None:
      return {}
    return {'cameras': jnp.asarray(cameras)}

  def init(key: Key[Array, '']) -> Flat:
    params_key, dropout_key = jax.random.split(key)
    rngs = {'params': params_key, 'dropout': dropout_key}
    images = jnp.zeros((2, *image_shape), jnp.float32)
    return trees.flatten(module.init(rngs, images, train=False))

  def apply(
    variables: Flat,
    images: Float[Array | np.ndarray, 'B H W ch'],
    *,
    train: bool,
    key: Key[Array, ''] | None = None,
    mask: Bool[Array | np.ndarray, ' B'] | None = None,
    num_identities: Number | None = None,
    modalities: Int[Array | np.ndarray, ' B'] | None = None,
    labels: Int[Array | np.ndarray, ' B'] | None = None,
    cameras: Int[Array | np.ndarray, ' B'] | None = None,
  ) -> tuple[types.Outputs, Flat]:
    variables, images, mask, modalities, labels = _arrays(
      variables, images, mask, modalities, labels
    )
    _, batch_stats = trees.trainable(variables)
    outputs, updated = module.apply(
      trees.unflatten(variables),
      images,
      train=train,
      num_identities=num_identities,
      mask=mask,
      modalities=modalities,
      labels=labels,
      **of_cameras(cameras),
      # A network without this key trains without dropout.
      rngs={} if key is None else {'dropout': key},
      mutable=['batch_stats'] if train else [],
    )
    # In evaluation nothing is updated, and the old statistics are returned.
    return outputs, batch_stats | trees.flatten(updated)

  def measure(
    variables: Flat,
    images: Float[Array | np.ndarray, 'B H W ch'],
    *,
    mask: Bool[Array | np.ndarray, ' B'] | None = None,
    num_identities: Number | None = None,
    modalities: Int[Array | np.ndarray, ' B'] | None = None,
    cameras: Int[Array | np.ndarray, ' B'] | None = None,
  ) -> tuple[types.Outputs, dict[str, Any]]:
    variables, images, mask, modalities = _arrays(
      variables, images, mask, modalities
    )
    outputs, found = module.apply(
      trees.unflatten(variables),
      images,
      train=False,
      num_identities=num_identities,
      mask=mask,
      modalities=modalities,
      **of_cameras(cameras),
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


def _arrays(*trees: Any) -> Any:
  return jax.tree.map(jnp.asarray, trees)
