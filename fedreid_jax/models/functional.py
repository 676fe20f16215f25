"""Wraps a linen network as pure functions of a flat dict of variables."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Bool, Float, Int, Key

from fedreid_jax.core import param_filter, types
from fedreid_jax.core.types import Array, Flat, Number


def wrap(
  module: nn.Module,
  image_shape: tuple[int, int, int],
) -> types.Model:
  """Returns the network as a `types.Model`.

  Its functions also take NumPy arrays, such as the variables of a checkpoint.

  Args:
    module: callable as `module(images, train=, num_identities=, mask=,
      modalities=, labels=)`, returns `types.Outputs` and has a method
      `classify`.
    image_shape: `(H, W, ch)` for the initialisation.
  """

  def init(key: Key[Array, '']) -> Flat:
    params_key, dropout_key = jax.random.split(key)
    rngs = {'params': params_key, 'dropout': dropout_key}
    images = jnp.zeros((2, *image_shape), jnp.float32)
    return param_filter.flatten(module.init(rngs, images, train=False))

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
  ) -> tuple[types.Outputs, Flat]:
    variables, images, mask, modalities, labels = _arrays(
      variables, images, mask, modalities, labels
    )
    _, batch_stats = param_filter.trainable(variables)
    outputs, updated = module.apply(
      param_filter.unflatten(variables),
      images,
      train=train,
      num_identities=num_identities,
      mask=mask,
      modalities=modalities,
      labels=labels,
      # A network without this key trains without dropout.
      rngs={} if key is None else {'dropout': key},
      mutable=['batch_stats'] if train else [],
    )
    # In evaluation nothing is updated, and the old statistics are returned.
    return outputs, batch_stats | param_filter.flatten(updated)

  def measure(
    variables: Flat,
    images: Float[Array | np.ndarray, 'B H W ch'],
    *,
    mask: Bool[Array | np.ndarray, ' B'] | None = None,
    num_identities: Number | None = None,
    modalities: Int[Array | np.ndarray, ' B'] | None = None,
  ) -> tuple[types.Outputs, dict[str, Any]]:
    variables, images, mask, modalities = _arrays(
      variables, images, mask, modalities
    )
    outputs, found = module.apply(
      param_filter.unflatten(variables),
      images,
      train=False,
      num_identities=num_identities,
      mask=mask,
      modalities=modalities,
      mutable=['moments'],
    )
    # Names are 'moments/LAYER/batch'. Networks without batch statistics have no
    # such collection.
    layers = param_filter.flatten(found['moments']) if found else {}
    return outputs, {n.removesuffix('/batch'): x for n, x in layers.items()}

  def classify(
    variables: Flat,
    embedding: Float[Array | np.ndarray, 'B D'],
    num_identities: Number | None = None,
  ) -> Any:
    variables, embedding = _arrays(variables, embedding)
    return module.apply(
      param_filter.unflatten(variables),
      embedding,
      num_identities,
      method='classify',
    )

  return types.Model(init, apply, measure, classify)


def _arrays(*trees: Any) -> Any:
  return jax.tree.map(jnp.asarray, trees)
