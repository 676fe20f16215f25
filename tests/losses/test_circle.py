import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses.circle import circle


def softplus(x):
  return np.logaddexp(0.0, x)


def oracle(z, labels, m=0.45, gamma=64.0, at=None):
  """Pair by pair; the factors are of the features `at`."""

  def cosine(z, i, j):
    return z[i] @ z[j] / np.linalg.norm(z[i]) / np.linalg.norm(z[j])

  at = z if at is None else at
  num, total = len(z), 0.0
  for i in range(num):
    pull, push = [], []
    for j in range(num):
      s, fixed = cosine(z, i, j), cosine(at, i, j)
      if labels[i] != labels[j]:
        push.append(gamma * max(fixed + m, 0) * (s - m))
      elif i != j:
        pull.append(-gamma * max(1 + m - fixed, 0) * (s - 1 + m))
    if pull and push:
      total += softplus(np.logaddexp.reduce(pull) + np.logaddexp.reduce(push))
  return total / num / num


def sample(seed=0, num=7, features=5):
  rng = np.random.default_rng(seed)
  return rng.standard_normal((num, features)), rng.integers(0, 3, num)


def loss(z, labels, valid=None, **options):
  valid = np.ones(len(labels), bool) if valid is None else valid
  return jax.jit(circle)(
    jnp.asarray(z, jnp.float32),
    jnp.asarray(labels),
    jnp.asarray(valid),
    **({'margin': 0.45, 'gamma': 64.0} | options),
  )


def test_one_positive_and_one_negative():
  """s+ 0.8 and s- 0.6: 64 (1.05 * 0.15 - 0.65 * 0.25) = -0.32.

  Softplus of it is 0.545893, over three anchors and a batch of three; that of
  the first anchor (s- 0) is 7e-11 and the third has no positive.
  """
  z = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
  np.testing.assert_allclose(loss(z, [0, 0, 1]), 0.545893 / 9, rtol=1e-4)


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('margin, gamma', [(0.45, 64.0), (0.25, 8.0)])
def test_against_a_sum_over_pairs(seed, margin, gamma):
  z, labels = sample(seed)
  np.testing.assert_allclose(
    loss(z, labels, margin=margin, gamma=gamma),
    oracle(z, labels, margin, gamma),
    rtol=1e-4,
  )


def test_the_factors_are_constants():
  z, labels = sample()
  gradient = jax.grad(loss)(jnp.asarray(z, jnp.float32), labels)
  expected, step = np.zeros_like(z), 1e-6
  for i, j in np.ndindex(*z.shape):
    ends = []
    for sign in (1, -1):
      moved = z.copy()
      moved[i, j] += sign * step
      ends.append(oracle(moved, labels, at=z))
    expected[i, j] = (ends[0] - ends[1]) / (2 * step)
  np.testing.assert_allclose(gradient, expected, rtol=2e-3, atol=1e-5)


def test_the_length_of_features_does_not_matter():
  z, labels = sample()
  np.testing.assert_allclose(loss(z, labels), loss(7 * z, labels), rtol=1e-4)


def test_padded_rows_do_not_count():
  z, labels = sample()
  more = np.concatenate([z, np.full((2, 5), 1e6)])
  valid = np.arange(9) < 7
  padded = [*labels, 0, 1]
  np.testing.assert_allclose(
    loss(more, padded, valid), loss(z, labels), rtol=1e-5
  )
  gradient = jax.grad(loss)(jnp.asarray(more, jnp.float32), padded, valid)
  assert not np.asarray(gradient)[7:].any()


@pytest.mark.parametrize('labels', [[0, 0, 0], [0, 1, 2]])
def test_anchors_without_a_positive_or_a_negative_add_nothing(labels):
  z = jnp.asarray(sample(num=3)[0], jnp.float32)
  value, gradient = jax.value_and_grad(loss)(z, labels)
  assert value == 0 and not np.asarray(gradient).any()


def test_no_valid_row():
  z = jnp.zeros((3, 2))
  value, gradient = jax.value_and_grad(loss)(z, [0, 0, 1], [False] * 3)
  assert value == 0 and not np.asarray(gradient).any()
