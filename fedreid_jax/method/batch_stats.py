"""Moments of batch normalisation, re-estimated at constant weights.

Running moments follow the weights with a delay: after a few fast steps, or
after an average of models, they do not fit the model, and features computed
with them can be many times too large. Features of a frozen model are therefore
computed with moments of the frozen model itself: every layer normalises a batch
by the moments of that batch, and the moments of the batches are merged exactly,

  mean = sum_b n_b mean_b / n,
  var  = sum_b n_b [var_b + (mean_b - mean)^2] / n,

weighted by number of images, so that the variance includes the differences
between batches or between clients.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax.core import trees
from fedreid_jax.core.types import Flat, Leaf

# One image has a variance of zero, and every normalised feature would be zero.
FEWEST_IMAGES = 2


@struct.dataclass
class BatchMoments:
  """Moments of the inputs of one normalisation layer.

  Attributes:
    count: number of images, float32.
    mean: `[D]`.
    var: biased variance, `[D]`.
  """

  count: Leaf
  mean: Leaf
  var: Leaf


Layers = dict[str, BatchMoments]


def zeros(measure: Callable[[], tuple[Any, Layers]]) -> Layers:
  """Returns the moments of zero images.

  Args:
    measure: `() -> (Outputs, Layers)` of any batch; it is traced for the shapes
      of its results and not computed.
  """
  return trees.zeros(jax.eval_shape(measure)[1])


def merge(a: Layers, b: Layers) -> Layers:
  """Returns the moments of the union of the images of `a` and `b`."""
  return {name: _merge(a[name], b[name]) for name in a}


def _merge(a: BatchMoments, b: BatchMoments) -> BatchMoments:
  count = a.count + b.count
  # The maximum avoids 0 / 0 for two parts without images.
  share = b.count / jnp.maximum(count, 1.0)
  shift = b.mean - a.mean
  mean = a.mean + share * shift
  var = a.var + share * (b.var - a.var) + share * (1.0 - share) * shift * shift
  return BatchMoments(count, mean, var)


def pool(parts: Iterable[Layers]) -> Layers:
  """Returns the moments of the images of all parts, merged in their order."""
  return functools.reduce(merge, parts)


def install(variables: Flat, layers: Layers) -> Flat:
  """Replaces the running moments in variables by re-estimated moments.

  A layer with moments of fewer than two images keeps its running moments.

  Args:
    variables: flat dict; running moments are `batch_stats/LAYER/mean|var`.
  """
  changed = dict(variables)
  for layer, found in layers.items():
    enough = found.count >= FEWEST_IMAGES
    for kind in ('mean', 'var'):
      name = f'batch_stats/{layer}/{kind}'
      value = getattr(found, kind)
      changed[name] = jnp.where(enough, value, variables[name])
  return changed
