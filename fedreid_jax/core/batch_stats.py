"""Moments of batch normalisation, re-estimated at weights that do not move.

Running moments follow a moving model with a delay: after a few fast steps, or
after an average of models, they belong to no model, and features made with them
can be many times too large. Features of a frozen model are therefore made with
moments that the frozen model itself has: every layer normalises a batch by the
moments of that batch, and the moments of the batches are merged exactly,

  mean = sum_b n_b mean_b / n,
  var  = sum_b n_b [var_b + (mean_b - mean)^2] / n,

by images, so that the spread between batches (or between clients) is counted.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core.types import Flat, Leaf

# Of fewer images a normalised feature is zero, whatever the image shows.
FEWEST_IMAGES = 2


@struct.dataclass
class BatchMoments:
  """Moments of the inputs of one normalisation layer.

  Attributes:
    count: images they are of, float32.
    mean: `[D]`.
    var: biased variance, `[D]`.
  """

  count: Leaf
  mean: Leaf
  var: Leaf


Layers = dict[str, BatchMoments]


def zeros(measure: Callable[[], tuple[Any, Layers]]) -> Layers:
  """Returns the moments of no images.

  Args:
    measure: `() -> (Outputs, Layers)` of any batch; only its shapes are used.
  """
  shapes = jax.eval_shape(measure)[1]
  return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)


def merge(a: Layers, b: Layers) -> Layers:
  """Returns the moments of the images of both."""
  return {name: _merge(a[name], b[name]) for name in a}


def _merge(a: BatchMoments, b: BatchMoments) -> BatchMoments:
  count = a.count + b.count
  share = b.count / jnp.maximum(count, 1.0)
  shift = b.mean - a.mean
  mean = a.mean + share * shift
  var = a.var + share * (b.var - a.var) + share * (1.0 - share) * shift * shift
  return BatchMoments(count, mean, var)


def pool(parts: Iterable[Layers]) -> Layers:
  """Returns the moments of the images of all parts, in their order."""
  first, *others = parts
  for part in others:
    first = merge(first, part)
  return first


def install(variables: Flat, layers: Layers) -> Flat:
  """Returns the variables with re-estimated moments for the running ones.

  A layer that saw fewer than two images keeps its running moments.

  Args:
    variables: flat dict; running moments are `batch_stats/LAYER/mean|var`.
    layers: moments by layer.
  """
  changed = dict(variables)
  for layer, found in layers.items():
    enough = found.count >= FEWEST_IMAGES
    for kind in ('mean', 'var'):
      name = f'batch_stats/{layer}/{kind}'
      value = getattr(found, kind)
      changed[name] = jnp.where(enough, value, variables[name])
  return changed
