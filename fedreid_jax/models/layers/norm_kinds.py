"""The kinds of normalisation layers of a network.

`batch` normalises by the statistics of the batch in training. `frozen` uses the
running statistics of pretrained weights in training as well, and trains scale
and bias only. `group` is group normalisation (Wu and He, "Group normalization",
ECCV 2018), which has no running statistics. With the last two the outputs of an
image depend on no other image.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array
from fedreid_jax.models.layers import norm

NormKind = Literal['batch', 'frozen', 'group']
MOST_GROUPS = 32


def num_groups(channels: int) -> int:
  """Returns the largest divisor of the channels that is at most 32."""
  return max(g for g in range(1, MOST_GROUPS + 1) if channels % g == 0)


class GroupNorm(nn.Module):
  """Normalises each image over groups of channels, in float32.

  Features without positions are one group (layer normalisation).

  Attributes:
    affine: whether it has a scale and a bias.
    dtype: type of the output.
    scale_init: initialiser of the scale.
  """

  affine: bool = True
  dtype: Any = jnp.float32
  scale_init: Callable = nn.initializers.ones

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B *positions D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B *positions D']:
    """Normalises samples; `train` and `mask` have no effect."""
    del train, mask
    # Without positions, groups of few numbers would lose most of their
    # information. The fast variance loses its digits when the mean is large.
    layer = nn.GroupNorm(
      num_groups(x.shape[-1]) if x.ndim > 2 else 1,
      epsilon=norm.EPSILON,
      dtype=jnp.float32,
      use_bias=self.affine,
      use_scale=self.affine,
      scale_init=self.scale_init,
      use_fast_variance=False,
    )
    # The leaves get the same names as those of `BatchNorm`.
    nn.share_scope(self, layer)
    return layer(x.astype(jnp.float32)).astype(self.dtype)


def layer(
  kind: str,
  name: str,
  *,
  affine: bool = True,
  dtype: Any = jnp.float32,
  scale_init: Callable = nn.initializers.ones,
) -> norm.BatchNorm | GroupNorm:
  """Returns a layer, called as `layer(x, train=, mask=)`.

  Args:
    kind: one of `NormKind`.
    name: name of the module.
    affine: whether it has a scale and a bias.
    dtype: type of the output.
    scale_init: initialiser of the scale.
  """
  if kind == 'group':
    return GroupNorm(affine, dtype, scale_init, name=name)
  return norm.BatchNorm(
    affine, dtype, scale_init, frozen=kind == 'frozen', name=name
  )
