"""Non-local blocks between the residual blocks of a ResNet.

Ye et al., "Deep learning for person re-identification: a survey and outlook"
(AGW): every position gets a sum over all positions, weighted by products of
embeddings divided by the number of positions, without a softmax.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array
from fedreid_jax.models.layers import conv, norm

# Number of last blocks of a stage that are followed by a non-local block.
LAST_BLOCKS = {2: 2, 3: 3}


class NonLocal(nn.Module):
  """Computes `x + BN(W y)` with `y_i = 1/P sum_j (theta(x_i).phi(x_j)) g(x_j)`.

  `P` is the number of positions. The scale of BN starts at 0, so that the block
  is at first an exact identity.

  Attributes:
    inter_channels: channels of `theta`, `phi` and `g`.
    dtype: type of the computation, except for the products in float32.
  """

  inter_channels: int = 1
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D']:
    """Adds the weighted sums to maps.

    Args:
      x: maps.
      train: use batch statistics.
      mask: real images, or None if all are.
    """

    def project(x, features, name):
      return conv.Conv(
        features,
        (1, 1),
        use_bias=True,
        dtype=self.dtype,
        kernel_init=conv.uniform,
        name=name,
      )(x)

    theta, phi, value = (
      project(x, self.inter_channels, name).astype(jnp.float32)
      for name in ('theta', 'phi', 'g')
    )
    positions = x.shape[1] * x.shape[2]
    # Without a softmax the sum over j is a small matrix common to all i, so no
    # P x P attention is ever formed.
    common = jnp.einsum('bhwp,bhwq->bpq', phi, value) / positions
    y = jnp.einsum('bhwp,bpq->bhwq', theta, common)
    y = project(y, x.shape[-1], 'w')
    # Scale 0, so that a pretrained trunk is unchanged at the start.
    bn = norm.BatchNorm(
      dtype=self.dtype, scale_init=nn.initializers.zeros, name='bn'
    )
    return x + bn(y, train=train, mask=mask)


def plugins(
  inter_channels: int = 1, dtype: Any = jnp.float32
) -> Callable[[int, int, int, int], NonLocal | None]:
  """Returns AGW's rule for `resnet.ResNet(plugins=)`.

  A block follows each of the last two blocks of stage 2 and of the last three
  of stage 3, or all of them if a stage has fewer: five in ResNet-50.

  Args:
    inter_channels: inner channels of a block; AGW's published models have 1.
    dtype: type of the computation.
  """

  def rule(stage: int, block: int, num_blocks: int, channels: int):
    del channels
    if block < num_blocks - LAST_BLOCKS.get(stage, 0):
      return None
    return NonLocal(inter_channels, dtype, name=f'non_local_{stage}_{block}')

  return rule
