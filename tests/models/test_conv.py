import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax import export, lax

from fedreid_jax.models import reid
from fedreid_jax.models.layers import conv


def draw(seed, *shape):
  values = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(values, jnp.float32)


def gradients(convolve, x, kernel, direction):
  """Output and both gradients of `<convolve(x, kernel), direction>`."""
  y, vjp = jax.vjp(convolve, x, kernel)
  return y, *vjp(direction)


def compare(ours, oracle, x, kernel, tolerance=2e-5):
  """Compares outputs and gradients, outside a loop and inside one."""
  direction = draw(2, *jax.eval_shape(oracle, x, kernel).shape)

  @jax.jit
  def all_three(num_steps, *arrays):
    expected = gradients(oracle, *arrays)
    in_loop = lax.fori_loop(
      0,
      num_steps,
      lambda _, carry: gradients(ours, *arrays),
      jax.tree.map(jnp.zeros_like, expected),
    )
    return expected, gradients(ours, *arrays), in_loop

  expected, *both = jax.device_get(all_three(2, x, kernel, direction))
  for found in both:
    for a, b in zip(found, expected, strict=True):
      scale = max(np.abs(b).max(), 1.0)
      np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(
  'size, stride, padding, dilation, shape',
  [
    (1, 1, 0, 1, (2, 5, 4, 3)),
    (1, 2, 0, 1, (2, 5, 4, 3)),
    (1, 1, 1, 1, (2, 5, 4, 3)),
    (3, 1, 1, 1, (2, 5, 4, 3)),
    (3, 1, 1, 1, (2, 5, 4, 4)),
    (3, 1, 1, 1, (2, 5, 4, 5)),
    (3, 2, 1, 1, (2, 6, 5, 3)),
    (3, 1, 2, 2, (2, 6, 5, 3)),
    (3, 2, 2, 2, (2, 7, 6, 3)),
    (7, 1, 3, 1, (1, 8, 7, 1)),
    (7, 2, 3, 1, (2, 16, 16, 3)),
    (3, 1, 1, 1, (2, 4, 2, 3)),
    (3, 2, 0, 1, (2, 5, 6, 3)),
    (3, 1, 2, 2, (2, 2, 1, 3)),
    (2, 2, 0, 1, (2, 3, 2, 3)),
  ],
)
def test_cpu_convolution_equals_the_plain_one(
  size, stride, padding, dilation, shape
):
  x, kernel = draw(0, *shape), draw(1, size, size, shape[-1], 5)

  def ours(x, kernel):
    return conv.on_cpu(x, kernel, stride, padding, dilation)

  def oracle(x, kernel):
    return conv.plain(x, kernel, stride, ((padding,) * 2,) * 2, dilation)

  compare(ours, oracle, x, kernel)


@pytest.mark.parametrize(
  'stride, shape',
  [(1, (2, 5, 4, 3)), (2, (2, 6, 4, 3)), (2, (2, 5, 7, 3)), (2, (2, 1, 2, 3))],
)
def test_depthwise_convolution_equals_the_plain_one(stride, shape):
  x, kernel = draw(0, *shape), draw(1, 3, 3, 1, shape[-1])

  def oracle(x, kernel):
    return lax.conv_general_dilated(
      x,
      kernel,
      (stride, stride),
      ((1, 1), (1, 1)),
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      feature_group_count=shape[-1],
    )

  for ours in (conv.depthwise, conv.depthwise_on_cpu):
    compare(lambda x, k, ours=ours: ours(x, k, stride), oracle, x, kernel)


@pytest.mark.parametrize(
  'stride, shape, products',
  [
    (1, (4, 2), True),
    (2, (8, 4), True),
    (2, (8, 6), False),
    (1, (3, 3), False),
  ],
)
def test_maps_smaller_than_the_kernel_are_matrix_products(
  stride, shape, products
):
  """XLA's CPU backend runs those convolutions naively, the gradients too."""
  program = jax.make_jaxpr(
    lambda x, k: jax.grad(
      lambda *a: conv.on_cpu(*a, stride, 1, 1).sum(), (0, 1)
    )(x, k)
  )(draw(0, 2, *shape, 5), draw(1, 3, 3, 5, 5))
  assert ('conv_general_dilated' not in str(program)) == products


@pytest.mark.parametrize('height', [4, 8])
def test_wide_convolutions_train_by_winograd_within_its_rounding(height):
  num = conv.WINOGRAD_CHANNELS
  x = draw(0, 2, height, 3, num)
  kernel = np.asarray(draw(1, 3, 3, num, num)) / 16

  def ours(x, kernel):
    return conv.on_cpu(x, kernel, 1, 1, 1)

  def oracle(x, kernel):
    return conv.plain(x, kernel, 1, ((1, 1), (1, 1)))

  compare(ours, oracle, x, kernel, tolerance=5e-5)
  np.testing.assert_array_equal(
    jax.jit(ours)(x, kernel), jax.jit(oracle)(x, kernel)
  )


def test_winograd_is_exact_on_small_integers():
  """Worked: with an identity kernel every tile gives its own rows back."""
  x = np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1)
  kernel = np.zeros((3, 3, 1, 1), np.float32)
  kernel[1, 1] = 6

  def rows(d, g):
    return conv.plain(d, g, 1, ((0, 0), (1, 1)))

  y = jax.jit(lambda *arrays: conv.winograd(rows, *arrays))(x, kernel)
  np.testing.assert_allclose(y.ravel(), 6 * np.arange(8.0), atol=1e-5)


def test_gradient_of_the_images_is_not_computed_for_nothing():
  """A first layer needs no input gradient: XLA must be able to drop it."""
  x, kernel = draw(0, 2, 6, 6, 3), draw(1, 3, 3, 3, 4)

  def loss(kernel):
    return conv.canonical(x, kernel, 1, ((1, 1), (1, 1))).sum()

  text = jax.jit(jax.grad(loss)).lower(kernel).compile().as_text()
  assert text.count('convolution(') <= 1


def test_module_has_torch_initialisation_and_float32_parameters():
  layer = conv.Conv(64, (3, 3), 2, padding=1, use_bias=True, dtype='bfloat16')
  y, variables = jax.jit(layer.init_with_output)(
    jax.random.key(0), draw(0, 2, 8, 6, 16)
  )
  assert y.shape == (2, 4, 3, 64) and y.dtype == jnp.bfloat16
  kernel, bias = variables['params']['kernel'], variables['params']['bias']
  assert kernel.shape == (3, 3, 16, 64) and kernel.dtype == jnp.float32
  assert bias.shape == (64,) and bias.dtype == jnp.float32
  # Kaiming normal, fan out: 2 / (64 * 9).
  deviation = np.asarray(kernel).std()
  np.testing.assert_allclose(deviation, (2 / 576) ** 0.5, rtol=0.05)


@pytest.mark.parametrize('platform, plain', [('cuda', True), ('cpu', False)])
def test_a_program_has_the_convolution_of_its_platform(platform, plain):
  """It is lowered in this process, which has a CPU only."""
  layer = conv.Conv(4, (1, 1))
  x = draw(0, 2, 8, 6, 3)
  variables = jax.eval_shape(layer.init, jax.random.key(0), x)

  def loss(variables, x):
    return layer.apply(variables, x).sum()

  def gradients(variables, x):
    """In a loop over clients, as in training."""
    return jax.lax.map(lambda one: jax.grad(loss)(variables, one), x)

  made = export.export(jax.jit(gradients), platforms=[platform])
  text = made(variables, jax.eval_shape(lambda x: x[None], x)).mlir_module()
  assert ('stablehlo.convolution' in text) == plain
  assert ('stablehlo.dot_general' in text) != plain


def pooled(pool, x, direction=None):
  """Maxima and the gradient of `<maxima, direction>`, by default of 0, 1 ..."""

  @jax.jit
  def both(x):
    y, vjp = jax.vjp(pool, x)
    own = jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)
    return y, vjp(own if direction is None else direction)[0]

  return jax.device_get(both(x))


@pytest.mark.parametrize('shape', [(2, 4, 6, 3), (2, 5, 3, 4)])
def test_max_pool_and_gradient_equal_reduce_window(shape):
  x = np.round(draw(0, *shape))  # rounded: plenty of ties
  found = pooled(conv.max_pool_2x2, x)
  wanted = pooled(lambda x: nn.max_pool(x, (2, 2), (2, 2)), x)
  for a, b in zip(found, wanted, strict=True):
    np.testing.assert_array_equal(a, b)


def windows(x):
  pads = (0, 0), (1, 1), (1, 1), (0, 0)
  return lax.reduce_window(
    x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads
  )


@pytest.mark.parametrize('size', [(8, 6), (7, 5), (1, 1), (2, 3)])
def test_overlapping_maxima_and_gradient_equal_reduce_window(size):
  """With ties the gradient goes to the first of equal values."""
  x = np.asarray(draw(0, 2, *size, 3))
  # Images with ties, and images without.
  x = np.concatenate([x, np.maximum(np.round(x), 0)])
  direction = draw(1, *jax.eval_shape(windows, x).shape)
  y, gradient = pooled(conv.max_pool_3x3, x, direction)
  wanted, oracle = pooled(windows, x, direction)
  np.testing.assert_array_equal(y, wanted)
  np.testing.assert_allclose(gradient, oracle, atol=1e-6)


def test_overlapping_maxima_are_xlas_on_other_platforms():
  program = jax.make_jaxpr(jax.grad(lambda x: conv.max_pool_3x3(x).sum()))(
    draw(0, 2, 8, 6, 3)
  )
  assert 'platform_index' in str(program)


def test_tie_goes_to_the_first_maximum():
  x = np.float32([[1, 3], [3, 3]]).reshape(1, 2, 2, 1)
  gradient = jax.jit(jax.grad(lambda x: conv.max_pool_2x2(x).sum()))(x)
  np.testing.assert_array_equal(gradient[0, ..., 0], [[0, 1], [0, 0]])


def test_worked_global_pools():
  """Positions 1, 2, 3, 0: mean 1.5, GeM ((1 + 8 + 27) / 4)^(1/3) = 9^(1/3)."""
  maps = np.float32([1, 2, 3, 0]).reshape(1, 2, 2, 1)
  mean, gem, flat = jax.jit(
    lambda x: (reid.average(x), reid.generalised_mean(x), reid.flatten(x))
  )(maps)
  np.testing.assert_allclose(mean, [[1.5]])
  np.testing.assert_allclose(gem, [[9 ** (1 / 3)]], 1e-6)
  np.testing.assert_array_equal(flat, [[1, 2, 3, 0]])


# The mean of one map, and its gradient.
GEM = jax.jit(jax.value_and_grad(lambda x: reid.generalised_mean(x).sum()))


def test_gem_counts_negative_values_as_zero():
  maps = np.float32([-1, -5, 3, 0]).reshape(1, 2, 2, 1)
  for x in (maps, np.minimum(maps, 0)):
    value, gradient = GEM(x)
    assert value == GEM(np.maximum(x, 0))[0]
    assert np.isfinite(gradient).all()


def test_gem_of_empty_maps_has_a_finite_gradient():
  maps = np.zeros((1, 2, 2, 1), np.float32)
  value, gradient = GEM(maps)
  np.testing.assert_allclose(value, 1e-4, 1e-4)
  np.testing.assert_array_equal(gradient, np.zeros_like(maps))
