"""DeepInversion: reconstruction of photographs from a model alone.

Yin et al., "Dreaming to distill: data-free knowledge transfer via
DeepInversion" (CVPR 2020), which DFH calls D2D and uses to measure the
information in feature statistics (DFH, figure 5). Images x are optimised from
noise to minimise

  G(x') + a_tv TV(x') + a_l2 mean_n |x'_n|
    + a_f sum_l c_l (|mean_l(x') - m_l| + |var_l(x') - v_l|),

where x' is x rolled and mirrored at random, m_l and v_l are the running
statistics of the l-th batch normalisation, mean_l and var_l those of its input
for x', c_l is 10 for the first and 1 for the others, and TV is the sum of the
norms of the differences between neighbours in four directions. G is the goal of
the attack (`goals`). The network is frozen. `search` optimises the images.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Float

from fedreid_jax.apps.audit.inversion.goals import Goal
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.models.layers import norm

Loss = Callable[
  [Float[Array, 'B H W ch']],
  tuple[Float[Array, ''], dict[str, Float[Array, '']]],
]


class Weights(NamedTuple):
  """Weights of the objective, as published; the weight of the goal is 1.

  Attributes:
    variation: of the differences between neighbours, `a_tv`.
    size: of the norm of an image, `a_l2`.
    statistics: of the batch statistics, `a_f`.
    first: of the statistics of the first normalisation, `c_0`.
  """

  variation: float = 1e-4
  size: float = 1e-5
  statistics: float = 0.05
  first: float = 10.0


def watch(
  model: types.Model, variables: Flat, images: Float[Array, 'B H W ch']
) -> tuple[
  types.Outputs, dict[str, tuple[Float[Array, ' _'], Float[Array, ' _']]]
]:
  """Runs a network in evaluation mode and measures its normalisation inputs.

  Returns:
    (outputs, mean and biased variance, `[D]` each, of the input of each batch
    normalisation of maps, by its name and in the order of the calls).
  """
  seen: dict[str, tuple[Array, Array]] = {}

  def measure(call, args, kwargs, context):
    layer = context.module
    if isinstance(layer, norm.BatchNorm) and args[0].ndim == images.ndim:
      maps = args[0].astype(jnp.float32)
      seen['/'.join(layer.path)] = norm.moments(maps, kwargs.get('mask'))
    return call(*args, **kwargs)

  with nn.intercept_methods(measure):
    outputs, _ = model.apply(variables, images, train=False)
  return outputs, seen


def variation(images: Float[Array, 'B H W ch']) -> Float[Array, '']:
  """Sums the norms of four maps of differences between neighbours."""
  early, late = slice(None, -1), slice(1, None)
  return (
    _norm(images[:, :, late] - images[:, :, early])
    + _norm(images[:, late] - images[:, early])
    + _norm(images[:, late, late] - images[:, early, early])
    + _norm(images[:, late, early] - images[:, early, late])
  )


def _norm(x: Float[Array, '...'], axis=None) -> Float[Array, '...']:
  # With the maximum the gradient of the norm of zero is zero, not NaN.
  return jnp.sqrt(jnp.maximum(jnp.square(x).sum(axis), 1e-12))


def make_loss(
  model: types.Model, variables: Flat, goal: Goal, weights: Weights
) -> Loss:
  """Builds the objective `(images [B, H, W, ch]) -> (loss, its parts)`.

  Args:
    model: network.
    variables: of the network, frozen.
    goal: goal of the attack.
    weights: weights of the other parts; all parts are returned unweighted.
  """

  def loss(
    images: Float[Array, 'B H W ch'],
  ) -> tuple[Float[Array, ''], dict[str, Float[Array, '']]]:
    outputs, seen = watch(model, variables, images)
    gaps = [
      _norm(mean - variables[f'batch_stats/{name}/mean'])
      + _norm(var - variables[f'batch_stats/{name}/var'])
      for name, (mean, var) in seen.items()
    ]
    # The first in the order of the calls; the slice allows networks without
    # batch normalisation.
    gaps[:1] = [weights.first * gap for gap in gaps[:1]]
    parts = {
      goal.name: goal.loss(outputs),
      'variation': variation(images),
      'size': _norm(images, (1, 2, 3)).mean(),
      'statistics': sum(gaps, jnp.float32(0.0)),
    }
    return (
      parts[goal.name]
      + weights.variation * parts['variation']
      + weights.size * parts['size']
      + weights.statistics * parts['statistics']
    ), parts

  return loss
