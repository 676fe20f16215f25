"""Normalisation layers, over the real samples of a padded batch.

`batch` normalises by the statistics of the batch in training. `frozen` uses the
running statistics of pretrained weights in training as well, and trains scale
and bias only. `group` is group normalisation (Wu and He, "Group normalization",
ECCV 2018), which has no running statistics. With the last two the outputs of an
image depend on no other image.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Bool, Float, Float32

from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array
from fedreid_jax.method.batch_stats import BatchMoments

EPSILON = 1e-5
# Weight of the old running moments; PyTorch's momentum is the rest, 0.1.
MOMENTUM = 0.9
NormKind = Literal['batch', 'frozen', 'group']
MOST_GROUPS = 32


def per_sample(mask: Bool[Array, ' B'], ndim: int) -> Bool[Array, ' B *ones']:
  """Reshapes a mask to broadcast against an array of `ndim` axes."""
  return mask.reshape(mask.shape + (1,) * (ndim - 1))


def relu(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Sets all but positive values to zero; nan stays, the gradient at 0 is 0."""
  # A selection, unlike a maximum, has two operands as large as its result. XLA
  # then stores the result for its consumers in the backward pass and does not
  # recompute it in each, back to the last convolution.
  return jnp.where(x <= 0, 0, x)


def relu6(x: Float[Array, '*shape']) -> Float[Array, '*shape']:
  """Limits values to 0 to 6; nan stays, the gradient at both ends is 0."""
  return jnp.where(x >= 6, 6, relu(x))


def moments(
  x: Float32[Array, 'B *positions D'], mask: Bool[Array, ' B'] | None = None
) -> tuple[Float32[Array, ' D'], Float32[Array, ' D']]:
  """Returns mean and biased variance of the real samples, zeros without any."""
  axes = tuple(range(x.ndim - 1))
  if mask is None:
    mean = x.mean(axes)
    # Squares of differences: the mean of squares minus the squared mean loses
    # its digits when the mean is large.
    return mean, jnp.square(x - mean).mean(axes)
  real = per_sample(mask, x.ndim)
  count = _count(x, mask)
  mean = quotients.divide(jnp.where(real, x, 0).sum(axes), count)
  squares = jnp.where(real, jnp.square(x - mean), 0)
  return mean, quotients.divide(squares.sum(axes), count)


def _count(x, mask):
  per_image = x.size // (x.shape[0] * x.shape[-1])
  # At least 1: without a real sample the moments are zero and not nan, so that
  # a padded step stays finite.
  num_real = x.shape[0] if mask is None else jnp.maximum(mask.sum(), 1)
  return jnp.float32(num_real * per_image)


@jax.custom_vjp
def standardize(
  x: Float[Array, 'B *positions D'],
  scale: Float32[Array, ' D'],
  bias: Float32[Array, ' D'],
  mask: Bool[Array, ' B'] | None,
) -> tuple[
  Float[Array, 'B *positions D'], Float32[Array, ' D'], Float32[Array, ' D']
]:
  """Returns (normalised x, mean, var) of a batch; moments have no gradient."""
  return _standardize(x, scale, bias, mask)[0]


def _standardize(x, scale, bias, mask):
  wide = x.astype(jnp.float32)
  mean, var = moments(wide, mask)
  inverse = lax.rsqrt(var + EPSILON)
  y = ((wide - mean) * (inverse * scale) + bias).astype(x.dtype)
  return (y, mean, var), (x, scale, mean, inverse, mask)


# Ioffe and Szegedy, "Batch normalization", section 3. This gradient needs x
# alone; automatic differentiation would store and read several arrays as large.
def _standardize_gradient(residuals, cotangents):
  x, scale, mean, inverse, mask = residuals
  dy, axes = cotangents[0].astype(jnp.float32), tuple(range(x.ndim - 1))
  centred = x.astype(jnp.float32) - mean
  dbias = dy.sum(axes)
  dscale = (dy * centred).sum(axes) * inverse
  gain, count = inverse * scale, _count(x, mask)
  slope = quotients.divide(-gain * inverse * dscale, count)
  through_moments = centred * slope - quotients.divide(gain * dbias, count)
  # Padded samples do not enter the moments.
  if mask is not None:
    through_moments = jnp.where(per_sample(mask, x.ndim), through_moments, 0)
  dx = gain * dy + through_moments
  return dx.astype(x.dtype), dscale, dbias, None


standardize.defvjp(_standardize, _standardize_gradient)


class BatchNorm(nn.Module):
  """Normalises each channel, with PyTorch's eps 1e-5 and momentum 0.1.

  All values but the output are float32. The running variance is biased, while
  that of PyTorch is unbiased.
  """

  affine: bool = True
  dtype: Any = jnp.float32
  scale_init: Callable = nn.initializers.ones
  frozen: bool = False  # train with the running statistics, unchanged

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B *positions D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B *positions D']:
    """Normalises samples; `train` updates the running statistics.

    If the collection `moments` is mutable, the statistics of the batch are used
    and stored in it for any value of `train`, and the running ones do not
    change.
    """
    shape = (x.shape[-1],)
    mean = self.variable('batch_stats', 'mean', jnp.zeros, shape)
    var = self.variable('batch_stats', 'var', jnp.ones, shape)
    scale, bias = jnp.ones(shape), jnp.zeros(shape)
    if self.affine:
      scale = self.param('scale', self.scale_init, shape)
      bias = self.param('bias', nn.initializers.zeros, shape)
    measuring = not self.is_initializing() and self.is_mutable_collection(
      'moments'
    )
    if self.frozen or not (train or measuring):
      factor = lax.rsqrt(var.value + EPSILON) * scale
      y = (x.astype(jnp.float32) - mean.value) * factor + bias
      return y.astype(self.dtype)
    y, batch_mean, batch_var = standardize(
      x.astype(self.dtype), scale, bias, mask
    )
    if measuring:
      images = jnp.float32(x.shape[0]) if mask is None else mask.sum()
      found = BatchMoments(images.astype(jnp.float32), batch_mean, batch_var)
      self.put_variable('moments', 'batch', found)
    elif not self.is_initializing():
      for running, now in ((mean, batch_mean), (var, batch_var)):
        new = MOMENTUM * running.value + (1 - MOMENTUM) * now
        # The moments of no image are zeros, which a step without images of one
        # modality must not mix into the statistics of that modality.
        seen = True if mask is None else mask.any()
        running.value = jnp.where(seen, new, running.value)
    return y


def num_groups(channels: int) -> int:
  """The largest divisor of the channels that is at most 32."""
  return max(g for g in range(1, MOST_GROUPS + 1) if channels % g == 0)


class GroupNorm(nn.Module):
  """Normalises each image over groups of channels, in float32.

  Features without positions are one group (layer normalisation).
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
      epsilon=EPSILON,
      dtype=jnp.float32,
      use_bias=self.affine,
      use_scale=self.affine,
      scale_init=self.scale_init,
      use_fast_variance=False,
    )
    # The leaves get the same names as those of `BatchNorm`.
    nn.share_scope(self, layer)
    return layer(x.astype(jnp.float32)).astype(self.dtype)


def instance_norm(
  x: Float[Array, 'B H W D'], name: str
) -> Float[Array, 'B H W D']:
  """Normalises every channel of every image in float32, in a compact module."""
  # The fast variance loses its digits when the mean is large.
  normalised = nn.InstanceNorm(
    epsilon=EPSILON, dtype=jnp.float32, use_fast_variance=False, name=name
  )
  return normalised(x.astype(jnp.float32)).astype(x.dtype)


class HalfInstanceNorm(nn.Module):
  """Normalises the first half of the channels by image, the others by batch.

  Pan et al., "Two at once: enhancing learning and generalization capacities via
  IBN-Net" (ECCV 2018). The names of the halves, `IN` and `BN`, are theirs.
  """

  kind: str = 'batch'  # of the second half, a `NormKind`
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B H W D']:
    """Normalises samples; `train` updates the statistics of the second half."""
    half = x.shape[-1] // 2
    by_image = instance_norm(x[..., :half], 'IN').astype(self.dtype)
    second = layer(self.kind, 'BN', dtype=self.dtype)
    by_batch = second(x[..., half:], train=train, mask=mask)
    return jnp.concatenate([by_image, by_batch], axis=-1)


def layer(
  kind: str,
  name: str,
  *,
  affine: bool = True,
  dtype: Any = jnp.float32,
  scale_init: Callable = nn.initializers.ones,
) -> BatchNorm | GroupNorm:
  """Returns a layer of a `NormKind`, called as `layer(x, train=, mask=)`."""
  if kind == 'group':
    return GroupNorm(affine, dtype, scale_init, name=name)
  return BatchNorm(
    affine, dtype, scale_init, frozen=kind == 'frozen', name=name
  )
