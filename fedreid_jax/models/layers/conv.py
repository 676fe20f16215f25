"""Two-dimensional convolution with gradients that are fast in loops on a CPU.

On a CPU, gradients are written as convolutions that XLA runs fast. 1x1
convolutions, those of maps smaller than the kernel, and the gradient of the
kernel of images with few channels are matrix products. Wide 3x3 convolutions
train by Winograd's method. Programs that are lowered for another platform use
XLA's convolution, on whichever platform they are traced.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Float

from fedreid_jax.core.types import Array

TILE = 4  # rows of the output that Winograd's method computes at a time
# For fewer channels the transforms cost more than the products they save.
WINOGRAD_CHANNELS = 32
# XLA convolves images of three channels slowly; they are padded to so many.
FEW_CHANNELS = 4

# PyTorch's default initialiser.
uniform = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
kaiming_normal = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')
Pads = tuple[tuple[int, int], tuple[int, int]]


def normal(mean: float, deviation: float) -> nn.initializers.Initializer:
  """Returns an initialiser that draws from N(mean, deviation^2)."""
  centred = nn.initializers.normal(deviation)

  def init(key, shape, dtype=jnp.float32):
    return mean + centred(key, shape, dtype)

  return init


class Conv(nn.Module):
  """Convolves images with the same padding on both sides, as PyTorch does."""

  features: int
  kernel_size: tuple[int, int]
  stride: int = 1
  padding: int = 0  # zeros on each side of both axes
  dilation: int = 1  # distance between the taps of both axes
  use_bias: bool = False
  dtype: Any = jnp.float32
  param_dtype: Any = jnp.float32
  kernel_init: Callable = kaiming_normal

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B H W ci']
  ) -> Float[Array, 'B h w {self.features}']:
    """Convolves maps."""
    shape = (*self.kernel_size, x.shape[-1], self.features)
    kernel = self.param('kernel', self.kernel_init, shape, self.param_dtype)
    x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
    # A program may be lowered for another platform than the one that traces it.
    y = lax.platform_dependent(
      x,
      kernel,
      cpu=functools.partial(
        on_cpu,
        stride=self.stride,
        padding=self.padding,
        dilation=self.dilation,
      ),
      default=functools.partial(
        plain,
        stride=self.stride,
        pads=both(self.padding),
        dilation=self.dilation,
      ),
    )
    if self.use_bias:
      bias = self.param(
        'bias', nn.initializers.zeros, (self.features,), self.param_dtype
      )
      y = y + bias.astype(self.dtype)
    return y


def on_cpu(
  x: Float[Array, 'B H W ci'],
  kernel: Float[Array, 'kh kw ci co'],
  stride: int,
  padding: int,
  dilation: int,
) -> Float[Array, 'B h w co']:
  """Convolves by the method of this module that trains fastest on a CPU."""
  size = kernel.shape[:2]
  if size == (1, 1) and padding == 0:
    return pointwise(x, kernel, stride)
  # XLA runs convolutions of maps smaller than the kernel naively, too.
  if _is_tiny(x, kernel, stride):
    return unfolded(x, kernel, stride, both(padding), dilation)
  if stride == dilation == 1 and x.shape[-1] <= FEW_CHANNELS:
    return of_few_channels(x, kernel, both(padding))
  if (
    (*size, stride, padding, dilation) == (3, 3, 1, 1, 1)
    and x.dtype == jnp.float32
    and x.shape[1] % TILE == 0
    and min(kernel.shape[2:]) >= WINOGRAD_CHANNELS
  ):
    return trained_by_winograd(x, kernel)
  return canonical(x, kernel, stride, both(padding), dilation)


def _is_tiny(x, kernel, stride: int) -> bool:
  """Returns whether the input or output is smaller than the kernel."""
  return any(
    -(-extent // stride) < size
    for extent, size in zip(x.shape[1:3], kernel.shape[:2], strict=True)
  )


def plain(
  x: Float[Array, 'B H W ci'],
  kernel: Float[Array, 'kh kw ci co'],
  stride: int,
  pads: Pads,
  dilation: int = 1,
) -> Float[Array, 'B h w co']:
  """Convolves with gradients by XLA."""
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    pads,
    rhs_dilation=(dilation, dilation),
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


class Depthwise(nn.Module):
  """Convolves each channel with its own 3x3 taps and padding 1."""

  stride: int = 1
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x: Float[Array, 'B H W D']) -> Float[Array, 'B h w D']:
    """Maps `[B, H, W, D]` to `[B, H / stride, W / stride, D]`."""
    shape = (3, 3, 1, x.shape[-1])
    kernel = self.param('kernel', kaiming_normal, shape)
    return lax.platform_dependent(
      x.astype(self.dtype),
      kernel.astype(self.dtype),
      cpu=functools.partial(depthwise_on_cpu, stride=self.stride),
      default=functools.partial(depthwise, stride=self.stride),
    )


def depthwise(
  x: Float[Array, 'B H W D'], kernel: Float[Array, '3 3 1 D'], stride: int
) -> Float[Array, 'B h w D']:
  """Sums nine shifted maps, each multiplied by its tap.

  XLA runs a grouped convolution 4 to 18 times slower on a CPU.
  """
  padded = _framed(x)
  rows, columns = (_reach(n, stride) for n in x.shape[1:3])
  taps = [
    padded[:, i : i + rows : stride, j : j + columns : stride] * kernel[i, j, 0]
    for i in range(3)
    for j in range(3)
  ]
  return functools.reduce(operator.add, taps)


def _framed(x):
  return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


def _reach(extent: int, stride: int) -> int:
  """Distance from the first to the last position of a tap, and one."""
  return (extent - 1) // stride * stride + 1


# The barriers keep XLA from joining the nine products with the layers before
# and after, which it may compute again for each tap, in programs that take
# minutes to compile. A loop over the taps makes the gradient of the kernel one
# short program, with half of the memory.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def depthwise_on_cpu(
  x: Float[Array, 'B H W D'], kernel: Float[Array, '3 3 1 D'], stride: int
) -> Float[Array, 'B h w D']:
  """Computes `depthwise` with gradients by hand, apart from other layers."""
  x = lax.optimization_barrier(x)
  return lax.optimization_barrier(depthwise(x, kernel, stride))


def _depthwise_forward(x, kernel, stride):
  return depthwise_on_cpu(x, kernel, stride), (x, kernel)


def _depthwise_backward(stride, residuals, dy):
  x, kernel = residuals
  x, dy = lax.optimization_barrier((x, dy))
  rows, columns = (_reach(n, stride) for n in x.shape[1:3])
  ends = x.shape[1] - rows, x.shape[2] - columns
  spread = lax.pad(
    dy,
    jnp.zeros((), dy.dtype),
    ((0, 0, 0), *((0, end, stride - 1) for end in ends), (0, 0, 0)),
  )
  dx = depthwise(spread, jnp.flip(kernel, (0, 1)), 1)
  padded = _framed(x)

  def of_tap(tap):
    seen = lax.dynamic_slice_in_dim(padded, tap // 3, rows, 1)
    seen = lax.dynamic_slice_in_dim(seen, tap % 3, columns, 2)
    return (seen[:, ::stride, ::stride] * dy).sum((0, 1, 2))

  d_kernel = lax.map(of_tap, jnp.arange(9)).reshape(kernel.shape)
  return lax.optimization_barrier((dx, d_kernel))


depthwise_on_cpu.defvjp(_depthwise_forward, _depthwise_backward)


def both(padding: int) -> Pads:
  """The same padding on every side."""
  return (padding, padding), (padding, padding)


def pointwise(
  x: Float[Array, 'B H W ci'], kernel: Float[Array, '1 1 ci co'], stride: int
) -> Float[Array, 'B h w co']:
  """Convolves 1x1 without padding, as one matrix product."""
  x = x[:, ::stride, ::stride]
  y = x.reshape(-1, x.shape[-1]) @ kernel[0, 0]
  return y.reshape(*x.shape[:3], -1)


def unfolded(
  x: Float[Array, 'B H W ci'],
  kernel: Float[Array, 'kh kw ci co'],
  stride: int,
  pads: Pads,
  dilation: int,
) -> Float[Array, 'B h w co']:
  """Convolves as one matrix product with the inputs of each output position."""
  kh, kw, ci, co = kernel.shape
  x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
  h, w = (
    (x.shape[1 + axis] - (kernel.shape[axis] - 1) * dilation - 1) // stride + 1
    for axis in (0, 1)
  )

  def seen(row, column):
    i, j = row * dilation, column * dilation
    rows = slice(i, i + (h - 1) * stride + 1, stride)
    return x[:, rows, j : j + (w - 1) * stride + 1 : stride]

  taps = [seen(row, column) for row in range(kh) for column in range(kw)]
  columns = jnp.concatenate(taps, axis=-1).reshape(-1, kh * kw * ci)
  return (columns @ kernel.reshape(-1, co)).reshape(-1, h, w, co)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def canonical(
  x: Float[Array, 'B H W ci'],
  kernel: Float[Array, 'kh kw ci co'],
  stride: int,
  pads: Pads,
  dilation: int = 1,
) -> Float[Array, 'B h w co']:
  """Computes `plain` with both gradients written as `b01f_01io->b01f`."""
  return plain(x, kernel, stride, pads, dilation)


def _canonical_forward(x, kernel, *static):
  return plain(x, kernel, *static), (x, kernel)


# Inside a `while` or `scan` XLA's CPU backend runs the kernel gradient that
# autodiff writes (`f01b_i01o->01bf`) naively, 20 to 40 times slower than
# outside. Both gradients are therefore written as `b01f_01io->b01f`.
def _canonical_backward(stride, pads, dilation, residuals, dy):
  x, kernel = residuals
  return (
    _input_gradient(x, kernel, dy, stride, pads, dilation),
    _kernel_gradient(x, kernel, dy, stride, pads, dilation),
  )


canonical.defvjp(_canonical_forward, _canonical_backward)


def _input_gradient(x, kernel, dy, stride, pads, dilation):
  opposite = []
  for axis in (0, 1):
    reach = (kernel.shape[axis] - 1) * dilation
    spread = (dy.shape[axis + 1] - 1) * stride + 1
    low = reach - pads[axis][0]
    opposite.append((low, x.shape[axis + 1] + reach - spread - low))
  return lax.conv_general_dilated(
    dy,
    jnp.flip(kernel, (0, 1)).swapaxes(2, 3),
    (1, 1),
    opposite,
    lhs_dilation=(stride, stride),
    rhs_dilation=(dilation, dilation),
    dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
  )


def _kernel_gradient(x, kernel, dy, stride, pads, dilation):
  # Channels take the place of samples, and the taps that of positions: a
  # convolution of the images with the output's gradient as its kernel.
  exact = []
  for axis in (0, 1):
    reach = (kernel.shape[axis] - 1) * dilation
    spread = (dy.shape[axis + 1] - 1) * stride + 1
    low = pads[axis][0]
    exact.append((low, reach + spread - x.shape[axis + 1] - low))
  x, dy = x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
  gradient = plain(x, dy, dilation, (exact[0], exact[1]), stride)
  return gradient.transpose(1, 2, 0, 3)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def of_few_channels(
  x: Float[Array, 'B H W ci'], kernel: Float[Array, 'kh kw ci co'], pads: Pads
) -> Float[Array, 'B h w co']:
  """Convolves with stride 1 maps of at most `FEW_CHANNELS` channels."""
  # XLA has fast programs for 1 and 4 channels, and takes three times as long
  # for 3.
  if x.shape[-1] > 1:
    more = FEW_CHANNELS - x.shape[-1]
    x = jnp.pad(x, (*((0, 0),) * 3, (0, more)))
    kernel = jnp.pad(kernel, ((0, 0), (0, 0), (0, more), (0, 0)))
  return plain(x, kernel, 1, pads)


def _few_channels_forward(x, kernel, pads):
  return of_few_channels(x, kernel, pads), (x, kernel)


def _few_channels_backward(pads, residuals, dy):
  x, kernel = residuals
  kh, kw, ci, co = kernel.shape
  h, w = dy.shape[1:3]
  # Copies of planes copy whole rows, and not the channels of each position.
  planes = jnp.pad(x.transpose(3, 0, 1, 2), ((0, 0), (0, 0), *pads))
  taps = [
    planes[:, :, row : row + h, column : column + w]
    for row in range(kh)
    for column in range(kw)
  ]
  columns = jnp.stack(taps).reshape(kh * kw * ci, -1)
  d_kernel = (columns @ dy.reshape(-1, co)).reshape(kernel.shape)
  return _input_gradient(x, kernel, dy, 1, pads, 1), d_kernel


of_few_channels.defvjp(_few_channels_forward, _few_channels_backward)


@jax.custom_vjp
def trained_by_winograd(
  x: Float[Array, 'B H W ci'], kernel: Float[Array, '3 3 ci co']
) -> Float[Array, 'B H W co']:
  """Convolves 3x3 with stride 1 and padding 1, differentiated by Winograd."""
  return plain(x, kernel, 1, both(1))


def _winograd_forward(x, kernel):
  def convolve_rows(rows, taps):
    return canonical(rows, taps, 1, ((0, 0), (1, 1)))

  y, kernel_vjp = jax.vjp(
    lambda kernel: winograd(convolve_rows, x, kernel), kernel
  )
  return y, (x, kernel, kernel_vjp)


def _winograd_backward(residuals, dy):
  x, kernel, kernel_vjp = residuals
  # The tiles of this gradient overlap, and their sum costs as much as the
  # products save. So does the convolution with the opposite kernel by the same
  # method, whose transforms read and write more memory.
  dx = _input_gradient(x, kernel, dy, 1, both(1), 1)
  return dx, *kernel_vjp(dy)


trained_by_winograd.defvjp(_winograd_forward, _winograd_backward)


def winograd(
  convolve_rows: Callable[..., Any],
  x: Float[Array, 'B H W ci'],
  kernel: Float[Array, '3 3 ci co'],
) -> Float[Array, 'B H W co']:
  """Convolves with stride 1 and padding 1 by Winograd's minimal filtering.

  Lavin and Gray, "Fast algorithms for convolutional neural networks", F(4, 3):
  four rows of the output need six products instead of twelve, both in the
  convolution and in the gradient of its kernel. It runs along the height only:
  the rounding error is then near 1e-5 of the output, and the added rows are
  contiguous.

  Args:
    convolve_rows: convolves `[B, H, W, ci]` with `[1, 3, ci, co]`, with padding
      1 of the width alone.
    x: images; H is a multiple of `TILE`.
    kernel: 3x3 taps.
  """
  padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
  last = x.shape[1] - TILE + 1
  rows = _transform_rows([padded[:, a : a + last : TILE] for a in range(6)])
  taps = _transform_taps([kernel[a : a + 1] for a in range(3)])
  products = [convolve_rows(d, g) for d, g in zip(rows, taps, strict=True)]
  y = jnp.stack(_combine(products), axis=2)
  return y.reshape(*x.shape[:3], kernel.shape[-1])


def _transform_rows(d):
  even, odd = d[4] - 4 * d[2], d[3] - 4 * d[1]
  half_even, half_odd = d[4] - d[2], 2 * (d[3] - d[1])
  return [
    4 * d[0] - 5 * d[2] + d[4],
    even + odd,
    even - odd,
    half_even + half_odd,
    half_even - half_odd,
    4 * d[1] - 5 * d[3] + d[5],
  ]


def _transform_taps(g):
  outer, middle = (g[0] + g[2]) / -6, g[1] / 6
  far, near = g[0] / 24 + g[2] / 6, g[1] / 12
  return [
    g[0] / 4,
    outer - middle,
    outer + middle,
    far + near,
    far - near,
    g[2],
  ]


def _combine(m):
  sum_1, difference_1 = m[1] + m[2], m[1] - m[2]
  sum_2, difference_2 = m[3] + m[4], m[3] - m[4]
  return [
    m[0] + sum_1 + sum_2,
    difference_1 + 2 * difference_2,
    sum_1 + 4 * sum_2,
    difference_1 + 8 * difference_2 + m[5],
  ]


@jax.custom_vjp
def max_pool_2x2(
  x: Float[Array, 'B H W D'],
) -> Float[Array, 'B H//2 W//2 D']:
  """Halves maps by maxima; a last odd row or column is dropped.

  The gradient goes to the first maximum in row-major order, as in PyTorch.
  """
  return _windows(x).max((2, 4))


def _windows(x):
  b, h, w, d = x.shape
  x = x[:, : h // 2 * 2, : w // 2 * 2]
  return x.reshape(b, h // 2, 2, w // 2, 2, d)


def _max_pool_forward(x):
  v = _windows(x)
  (a, b), (c, d) = [[v[:, :, i, :, j] for j in (0, 1)] for i in (0, 1)]
  lower = jnp.maximum(c, d) > jnp.maximum(a, b)
  first = jnp.where(lower, 2 + (d > c), b > a).astype(jnp.int8)
  return max_pool_2x2(x), (first, x.shape)


# XLA's gradient, a select-and-scatter, is about twenty times slower on a CPU.
def _max_pool_backward(residuals, dy):
  first, shape = residuals
  b, h, w, d = dy.shape

  def spread(a):
    a = jnp.broadcast_to(a[:, :, None, :, None], (b, h, 2, w, 2, d))
    return a.reshape(b, 2 * h, 2 * w, d)

  # A selection in four axes, not in the six of the windows, lets XLA store the
  # result for its several consumers; see `norm.relu`.
  row = lax.broadcasted_iota(jnp.int8, (1, 2 * h, 1, 1), 1) % 2
  column = lax.broadcasted_iota(jnp.int8, (1, 1, 2 * w, 1), 2) % 2
  dx = jnp.where(spread(first) == 2 * row + column, spread(dy), 0)
  odd = [(0, size % 2) for size in shape[1:3]]
  return (jnp.pad(dx, ((0, 0), *odd, (0, 0))),)


max_pool_2x2.defvjp(_max_pool_forward, _max_pool_backward)


def max_pool_3x3(
  x: Float[Array, 'B H W D'],
) -> Float[Array, 'B h w D']:
  """Takes maxima with stride 2 and padding 1; h and w are halves, rounded up.

  The gradient goes to the first maximum in row-major order, as in PyTorch.
  """

  def default(x):
    return nn.max_pool(x, (3, 3), (2, 2), [(1, 1), (1, 1)])  # pyright: ignore

  return lax.platform_dependent(x, cpu=_max_pool_3x3, default=default)


# XLA's windows of maxima and their gradient are several times slower on a CPU
# than the nine shifted maps, and take a tenth of a step of a small ResNet.
@jax.custom_vjp
def _max_pool_3x3(x):
  return functools.reduce(jnp.maximum, _shifted(x))


def _shifted(x):
  """Returns the nine maps of the values that a window sees, row by row."""
  h, w = -(-x.shape[1] // 2), -(-x.shape[2] // 2)
  pads = (0, 0), (1, 2 * h - x.shape[1]), (1, 2 * w - x.shape[2]), (0, 0)
  x = jnp.pad(x, pads, constant_values=-jnp.inf)
  return [
    x[:, row : row + 2 * h - 1 : 2, column : column + 2 * w - 1 : 2]
    for row in range(3)
    for column in range(3)
  ]


def _max_pool_3x3_forward(x):
  maps = _shifted(x)
  largest, first = maps[0], jnp.zeros(maps[0].shape, jnp.int8)
  for number, one in enumerate(maps[1:], 1):
    first = jnp.where(one > largest, jnp.int8(number), first)
    largest = jnp.maximum(one, largest)
  return largest, (first, x.shape)


# Taps of windows that see an even row of the maps, and an odd one: the middle
# of its window, and the end of a window and the start of the next one.
_TAPS = ((1, 0),), ((2, 0), (0, 1))  # (tap, windows after its own)


def _max_pool_3x3_backward(residuals, dy):
  first, (b, height, width, d) = residuals
  h, w = dy.shape[1:3]

  def later(x, rows, columns, fill):
    pads = ((0, 0), (0, rows), (0, columns), (0, 0))
    x = jnp.pad(x, pads, constant_values=fill)
    return x[:, rows:, columns:]

  def plane(rows, columns):
    """The gradient of each second row and column."""
    return sum(
      jnp.where(
        later(first, i, j, -1) == 3 * row + column, later(dy, i, j, 0), 0
      )
      for row, i in rows
      for column, j in columns
    )

  planes = [jnp.stack([plane(r, c) for c in _TAPS], axis=3) for r in _TAPS]
  dx = jnp.stack(planes, axis=2).reshape(b, 2 * h, 2 * w, d)
  return (dx[:, :height, :width],)


_max_pool_3x3.defvjp(_max_pool_3x3_forward, _max_pool_3x3_backward)
