"""Two-dimensional convolution whose gradients stay fast inside CPU loops."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

Pair = tuple[int, int]
kaiming_normal = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')
_NHWC = ('NHWC', 'HWIO', 'NHWC')


def plain(x, kernel, stride: int, padding: int, dilation: int):
  """Convolves `[B, H, W, ci]` with `[kh, kw, ci, co]`, gradients by XLA."""
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    ((padding, padding), (padding, padding)),
    rhs_dilation=(dilation, dilation),
    dimension_numbers=_NHWC,
  )


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def canonical(x, kernel, stride: int, padding: int, dilation: int):
  """Is `plain` with both gradients written as `b01f_01io->b01f`."""
  return plain(x, kernel, stride, padding, dilation)


def _forward(x, kernel, stride, padding, dilation):
  return plain(x, kernel, stride, padding, dilation), (x, kernel)


def _backward(stride, padding, dilation, residuals, dy):
  x, kernel = residuals
  return (
    _input_gradient(x.shape, kernel, dy, stride, padding, dilation),
    _kernel_gradient(x, kernel.shape, dy, stride, padding, dilation),
  )


def _input_gradient(x_shape, kernel, dy, stride, padding, dilation):
  pads = []
  for size, taps, out in zip(x_shape[1:3], kernel.shape[:2], dy.shape[1:3]):
    reach = (taps - 1) * dilation
    low = reach - padding
    pads.append((low, size + reach - low - (out - 1) * stride - 1))
  return lax.conv_general_dilated(
    dy,
    jnp.flip(kernel, (0, 1)).swapaxes(2, 3),
    (1, 1),
    pads,
    lhs_dilation=(stride, stride),
    rhs_dilation=(dilation, dilation),
    dimension_numbers=_NHWC,
  )


def _kernel_gradient(x, kernel_shape, dy, stride, padding, dilation):
  pads = []
  for size, taps, out in zip(x.shape[1:3], kernel_shape[:2], dy.shape[1:3]):
    reach = (taps - 1) * dilation + (out - 1) * stride + 1
    pads.append((padding, reach - size - padding))
  gradient = lax.conv_general_dilated(
    x.transpose(3, 1, 2, 0),
    dy.transpose(1, 2, 0, 3),
    (dilation, dilation),
    pads,
    rhs_dilation=(stride, stride),
    dimension_numbers=_NHWC,
  )
  return gradient.transpose(1, 2, 0, 3)


canonical.defvjp(_forward, _backward)


class Conv(nn.Module):
  """Convolves images, padding both sides alike as PyTorch does.

  Attributes:
    features: number of output channels.
    kernel_size: height and width of the kernel.
    stride: step of both axes.
    padding: zeros added to each side of both axes.
    dilation: distance between the taps of both axes.
    use_bias: whether a bias is added.
    dtype: what it computes in.
    param_dtype: what the parameters are kept in.
  """

  features: int
  kernel_size: Pair
  stride: int = 1
  padding: int = 0
  dilation: int = 1
  use_bias: bool = False
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32
  kernel_init: Callable = kaiming_normal

  @nn.compact
  def __call__(self, x):
    """Maps `[B, H, W, ci]` to `[B, h, w, features]`."""
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param('kernel', self.kernel_init, shape, self.param_dtype)
    convolve = canonical if jax.default_backend() == 'cpu' else plain
    y = convolve(
      x.astype(self.dtype),
      kernel.astype(self.dtype),
      self.stride,
      self.padding,
      self.dilation,
    )
    if self.use_bias:
      bias = self.param(
        'bias', nn.initializers.zeros, (self.features,), self.param_dtype
      )
      y = y + bias.astype(self.dtype)
    return y
