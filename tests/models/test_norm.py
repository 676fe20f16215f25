import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.models.layers import norm


def draw(seed, *shape):
  values = np.random.default_rng(seed).standard_normal(shape)
  return jnp.asarray(values, jnp.float32)


def autodiff(x, scale, bias, mask):
  """Batch normalisation whose gradient JAX derives."""
  mean, var = norm.moments(x, mask)
  return (x - mean) * jax.lax.rsqrt(var + norm.EPSILON) * scale + bias


@pytest.mark.parametrize('shape', [(6, 5), (4, 3, 2, 5)])
@pytest.mark.parametrize('masked', [False, True])
def test_gradient_equals_the_automatic_one(shape, masked):
  x, direction = 3 + 2 * draw(0, *shape), draw(1, *shape)
  scale, bias = 1 + draw(2, 5), draw(3, 5)
  mask = jnp.arange(shape[0]) < 3 if masked else None
  _, vjp = jax.vjp(lambda *a: norm.standardize(*a, mask)[0], x, scale, bias)
  _, oracle = jax.vjp(lambda *a: autodiff(*a, mask), x, scale, bias)
  for a, b in zip(vjp(direction), oracle(direction), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_worked_statistics():
  """Values 1, 3, 5, 7: mean 4, biased variance 5."""
  x = jnp.asarray([[1.0], [3.0], [5.0], [7.0], [99.0]])
  mask = jnp.asarray([True] * 4 + [False])
  layer = norm.BatchNorm()
  variables = layer.init(jax.random.key(0), x, train=False)
  y, updated = layer.apply(
    variables, x, train=True, mask=mask, mutable=['batch_stats']
  )
  np.testing.assert_allclose(y[:4, 0], np.array([-3, -1, 1, 3]) / 5**0.5, 1e-5)
  np.testing.assert_allclose(updated['batch_stats']['mean'], [0.4], 1e-6)
  np.testing.assert_allclose(updated['batch_stats']['var'], [1.4], 1e-6)
  y = layer.apply(variables | updated, x, train=False)
  np.testing.assert_allclose(y[0], [0.6 / 1.4**0.5], 1e-4)


def test_variance_survives_a_large_mean():
  x = 1e4 + draw(0, 4096, 1)
  np.testing.assert_allclose(norm.moments(x)[1], x.std() ** 2, rtol=1e-3)


def test_batch_without_a_real_sample_stays_finite():
  x, mask = draw(0, 4, 3), jnp.zeros(4, bool)

  def loss(x):
    y, mean, var = norm.standardize(x, jnp.ones(3), jnp.zeros(3), mask)
    return y.sum(), (mean, var)

  gradient, (mean, var) = jax.grad(loss, has_aux=True)(x)
  assert np.isfinite(gradient).all()
  np.testing.assert_array_equal([mean, var], np.zeros((2, 3)))


def test_a_step_without_a_real_sample_leaves_the_running_statistics():
  layer, x = norm.BatchNorm(), draw(0, 4, 3)
  old = {'mean': draw(1, 3), 'var': 1 + draw(2, 3) ** 2}
  variables = layer.init(jax.random.key(0), x, train=False)
  step = jax.jit(
    lambda mask: layer.apply(
      {**variables, 'batch_stats': old},
      x,
      train=True,
      mask=mask,
      mutable=['batch_stats'],
    )[1]['batch_stats']
  )
  kept, moved = step(jnp.zeros(4, bool)), step(jnp.arange(4) < 1)
  for name, value in old.items():
    np.testing.assert_array_equal(kept[name], value)
    assert (moved[name] != value).all()


def test_affine_parameters_are_optional():
  layer = norm.BatchNorm(affine=False)
  variables = layer.init(jax.random.key(0), jnp.ones((2, 3)), train=False)
  assert set(variables) == {'batch_stats'}


def test_relu_keeps_nan_and_has_no_gradient_at_zero():
  x = jnp.asarray([-1.0, 0.0, 2.0, np.nan])
  np.testing.assert_array_equal(norm.relu(x), [0, 0, 2, np.nan])
  gradient = jax.grad(lambda x: norm.relu(x).sum())(x[:3])
  np.testing.assert_array_equal(gradient, [0, 0, 1])
