import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import discrepancy

# Compiled whole: one operation after another takes longer to compile.
statistic = jax.jit(jax.value_and_grad(discrepancy.mmd))
alignment = jax.jit(discrepancy.alignment)
distillation = jax.jit(jax.value_and_grad(discrepancy.distillation, (0, 1)))


def vectors(num, seed, dim=6):
  return np.random.default_rng(seed).normal(size=(num, dim))


def squared(x, y):
  return np.square(x[:, None] - y[None]).sum(axis=2)


def bandwidth(x, y):
  both = np.concatenate([x, y])
  n = len(both)
  return squared(both, both).sum() / (n * (n - 1)) / 4


def mmd(x, y, width=None):
  """The statistic, three means over all pairs."""
  width = width or bandwidth(x, y)

  def kernel(a, b):
    d = squared(a, b) / width
    return (
      np.exp(-d)
      + np.exp(-d / 2)
      + np.exp(-d / 4)
      + np.exp(-d / 8)
      + np.exp(-d / 16)
    ).mean()

  return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def unit(x):
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def real(num):
  return jnp.ones(num, bool)


def test_mmd_of_two_points_worked_by_hand():
  """Distance 2, width (2 * 4 / 2) / 4 = 1: 10 - 2 sum exp(-4 / 2^i)."""
  found, _ = statistic(jnp.array([[0.0]]), jnp.array([[2.0]]), real(1), real(1))
  expected = 10 - 2 * (0.018316 + 0.135335 + 0.367879 + 0.606531 + 0.778801)
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_mmd_equals_numpy_for_sets_of_different_size():
  x, y = vectors(5, 0), 1 + vectors(3, 1)
  found, _ = statistic(jnp.asarray(x), jnp.asarray(y), real(5), real(3))
  np.testing.assert_allclose(found, mmd(x, y), rtol=1e-5)


def test_mmd_of_the_same_samples_is_zero():
  x = jnp.asarray(vectors(5, 0))
  assert abs(statistic(x, x, real(5), real(5))[0]) < 1e-6


def test_rows_out_of_both_sets_change_nothing():
  x, y = vectors(5, 0), vectors(4, 1)
  in_x, in_y = np.arange(5) < 3, np.arange(4) > 0
  value, grad = statistic(
    jnp.asarray(x), jnp.asarray(y), jnp.asarray(in_x), jnp.asarray(in_y)
  )
  np.testing.assert_allclose(value, mmd(x[in_x], y[in_y]), rtol=1e-5)
  np.testing.assert_array_equal(grad[~in_x], np.zeros((2, 6)))


def test_no_gradient_passes_through_the_bandwidth():
  x, y = vectors(3, 0, 2), vectors(3, 1, 2)
  width, step = bandwidth(x, y), 1e-5
  _, grad = statistic(jnp.asarray(x), jnp.asarray(y), real(3), real(3))
  for at in np.ndindex(x.shape):
    move = np.zeros_like(x)
    move[at] = step
    change = mmd(x + move, y, width) - mmd(x - move, y, width)
    np.testing.assert_allclose(grad[at], change / (2 * step), atol=1e-5)


@pytest.mark.parametrize('in_x, in_y', [(3, 0), (0, 3), (0, 0)])
def test_an_empty_set_is_zero_without_nan(in_x, in_y):
  x, count = jnp.asarray(vectors(3, 0)), jnp.arange(3)
  value, grad = statistic(x, x + 1, count < in_x, count < in_y)
  assert value == 0
  np.testing.assert_array_equal(grad, np.zeros_like(x))


def test_differences_are_not_rounded_to_short_floats():
  x, mask = jnp.ones((4, 6)), jnp.arange(4) < 2
  program = str(jax.make_jaxpr(discrepancy.mmd)(x, x, mask, ~mask))
  products = program.count('dot_general')
  assert products and program.count('Precision.HIGHEST') == 2 * products


def test_collapsed_features_are_near_zero_and_finite():
  x = jnp.full((4, 8), 0.125**0.5)
  value, grad = statistic(x, x, real(4), real(4))
  assert abs(value) < 1e-6
  assert np.isfinite(grad).all()


def domains():
  """Two domains of three and two images, and a row of neither."""
  members = np.array([[1, 0, 1, 0, 1, 0], [0, 1, 0, 0, 0, 1]], bool)
  return 3 * vectors(6, 0), vectors(6, 1), members


def test_alignment_of_two_domains():
  z, shifted, (v, r) = domains()
  a, b = unit(z), unit(shifted)
  expected = 0.45 * (mmd(a[v], a[r]) + mmd(b[v], b[r]))
  expected += 0.05 * (mmd(a[v], b[v]) + mmd(a[r], b[r]))
  found = alignment(jnp.asarray(z), jnp.asarray(shifted), jnp.asarray([v, r]))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('empty', [False, True])
def test_alignment_of_one_domain_has_no_term_between_domains(empty):
  """One domain of one, or of two the other of which is not in the batch."""
  z, shifted, (v, _) = domains()
  members = np.stack([v, np.zeros_like(v)]) if empty else v[None]
  found = alignment(jnp.asarray(z), jnp.asarray(shifted), jnp.asarray(members))
  expected = 0.05 * mmd(unit(z)[v], unit(shifted)[v])
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_distillation_worked_numbers():
  """Softmax (1/4, 3/4) is taught (1/2, 1/2), and (1/2, 1/2) is taught itself.

  KL = 1/4 ln 1/2 + 3/4 ln 3/2 = 0.130812, and 0. The first image is all of its
  domain, -ln 3/4 = 0.287682; so is the second, ln 2 = 0.693147.
  """
  logits = jnp.array([[0.0, np.log(3.0)], [1.0, 1.0], [9.0, 0.0]])
  targets = jnp.array([[2.0, 2.0], [0.0, 0.0], [0.0, 9.0]])
  labels = jnp.array([1, 0, 1])
  members = jnp.array([[True, False, False], [False, True, False]])
  expected = 0.130812 / 2 + 0.25 * (0.287682 + 0.693147)
  found, grads = distillation(logits, targets, labels, members)
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_array_equal(grads[1], np.zeros_like(targets))
  np.testing.assert_array_equal(grads[0][2], np.zeros(2))
  # Without the second image's domain its terms are gone.
  found, _ = distillation(logits, targets, labels, members[:1])
  np.testing.assert_allclose(found, 0.130812 + 0.25 * 0.287682, rtol=1e-5)


def test_distillation_over_padded_identities_is_finite():
  logits = jnp.array([[0.0, np.log(3.0), -1e9]])
  everybody = jnp.ones((1, 1), bool)
  found, (grad, _) = distillation(
    logits, jnp.array([[0.0, 0.0, -1e9]]), jnp.array([1]), everybody
  )
  np.testing.assert_allclose(found, 0.130812 + 0.25 * 0.287682, rtol=1e-5)
  assert np.isfinite(grad).all() and grad[0, 2] == 0


def test_no_image_at_all_is_zero():
  nobody = jnp.zeros((2, 3), bool)
  x, labels = jnp.asarray(vectors(3, 0)), jnp.zeros(3, jnp.int32)
  assert distillation(x, x, labels, nobody)[0] == 0
  assert alignment(x, x, nobody) == 0
