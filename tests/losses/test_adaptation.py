import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import adaptation

mmd = jax.jit(adaptation.mmd)
softmax_triplet = jax.jit(adaptation.softmax_triplet)
soft_softmax_triplet = jax.jit(adaptation.soft_softmax_triplet)


def squared(a, b):
  return ((a[:, None] - b[None]) ** 2).sum(-1)


def width_of(x, y):
  rows = np.concatenate((x, y))
  num = len(rows)
  return squared(rows, rows).sum() / (num * (num - 1)) / 4


def mmd_oracle(x, y, width=None):
  width = width_of(x, y) if width is None else width

  def mean(a, b):
    return np.mean(
      sum(np.exp(-squared(a, b) / (width * 2**i)) for i in range(5))
    )

  return mean(x, x) + mean(y, y) - mean(x, y) - mean(y, x)


def triplet_oracle(x, teacher, labels):
  """The softmax triplet losses, against labels and against the teacher."""
  d, t = np.sqrt(squared(x, x)), np.sqrt(squared(teacher, teacher))
  hard, soft = [], []
  for a in range(len(x)):
    positives = [b for b in range(len(x)) if labels[b] == labels[a] and b != a]
    negatives = [b for b in range(len(x)) if labels[b] != labels[a]]
    if not positives or not negatives:
      continue
    p = max(positives, key=lambda b, a=a: d[a, b])
    n = min(negatives, key=lambda b, a=a: d[a, b])
    log_p = d[a, [p, n]] - np.log(np.exp(d[a, [p, n]]).sum())
    q = np.exp(t[a, [p, n]]) / np.exp(t[a, [p, n]]).sum()
    hard.append(-log_p[1])
    soft.append(-(q * log_p).sum())
  return np.mean(hard), np.mean(soft)


def rows(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def flags(num):
  return jnp.ones(num, bool)


def test_mmd_worked_number():
  """Two points at distance 2, so that 4 w = 4 and w = 1."""
  found = mmd(jnp.array([[0.0]]), jnp.array([[2.0]]), flags(1), flags(1))
  between = sum(np.exp(-4 / 2**i) for i in range(5))
  np.testing.assert_allclose(found, 10 - 2 * between, rtol=1e-5)


def test_mmd_of_unequal_sets():
  x, y = rows(0, 5, 3), rows(1, 7, 3) + 0.5
  found = mmd(x, y, flags(5), flags(7))
  np.testing.assert_allclose(found, mmd_oracle(x, y), rtol=1e-5)
  # A kernel less is another number.
  assert abs(float(found) - mmd_oracle(x, y, width_of(x, y) / 2)) > 1e-3


def test_mmd_of_equal_sets_is_zero():
  x = rows(0, 4, 3)
  assert float(mmd(x, x, flags(4), flags(4))) == pytest.approx(0, abs=1e-6)
  same = jnp.ones((2, 3))
  assert float(mmd(same, same, flags(2), flags(2))) == pytest.approx(
    0, abs=1e-6
  )


def test_the_width_has_no_gradient():
  """A common scale changes no value, but the gradient has a fixed width."""
  x, y = rows(0, 4, 3), rows(1, 6, 3) + 0.5

  def scaled(s):
    return mmd(s * x, s * y, flags(4), flags(6))

  np.testing.assert_allclose(scaled(2.0), scaled(1.0), rtol=1e-5)
  width, h = width_of(x, y), 1e-3
  sides = [mmd_oracle(s * x, s * y, width) for s in (1 + h, 1 - h)]
  slope = (sides[0] - sides[1]) / (2 * h)
  assert abs(slope) > 0.1
  np.testing.assert_allclose(compiled.grad(scaled)(1.0), slope, rtol=1e-3)


def test_padding_of_either_set_changes_nothing():
  x, y = rows(0, 4, 3), rows(1, 6, 3)
  nan = np.full((2, 3), np.nan, np.float32)
  wide = np.concatenate((nan, x)), np.concatenate((y, nan[:1]))
  valid = jnp.array([False] * 2 + [True] * 4), jnp.array([True] * 6 + [False])
  found, slope = compiled.value_and_grad(adaptation.mmd)(*wide, *valid)
  np.testing.assert_allclose(found, mmd_oracle(x, y), rtol=1e-5)
  plain = compiled.grad(adaptation.mmd)(x, y, flags(4), flags(6))
  np.testing.assert_allclose(slope[2:], plain, atol=1e-6)
  assert not np.any(slope[:2])


def test_mmd_with_an_empty_set_is_zero_with_a_finite_gradient():
  x, y = rows(0, 4, 3), rows(1, 6, 3)
  value, slope = compiled.value_and_grad(adaptation.mmd)(
    x, y, flags(4), jnp.zeros(6, bool)
  )
  assert float(value) == 0 and not np.any(slope)


def test_softmax_triplet_worked_number():
  """a0=0, a1=3 | b0=4, b1=10; gaps of the anchors: 3-4, 3-1, 6-1, 6-7."""
  x, labels = jnp.array([[0.0], [3.0], [4.0], [10.0]]), jnp.array([0, 0, 1, 1])
  expected = np.mean(np.log1p(np.exp([-1.0, 2.0, 5.0, -1.0])))
  found = softmax_triplet(x, labels, flags(4))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_triplets_of_random_batches():
  labels = np.array([0, 0, 1, 1, 1, 2, 3, 3])
  for seed in range(3):
    x, teacher = rows(seed, 8, 4), rows(seed + 9, 8, 4)
    hard, soft = triplet_oracle(x, teacher, labels)
    found = softmax_triplet(x, labels, flags(8))
    np.testing.assert_allclose(found, hard, rtol=1e-5)
    found = soft_softmax_triplet(x, teacher, labels, flags(8))
    np.testing.assert_allclose(found, soft, rtol=1e-5)
    swapped = soft_softmax_triplet(teacher, x, labels, flags(8))
    assert abs(float(swapped) - soft) > 1e-3


def test_padding_changes_no_triplet_and_the_teacher_has_no_gradient():
  labels = np.array([0, 0, 1, 1, 0])
  x, teacher = rows(0, 5, 4), rows(1, 5, 4)
  x[4], teacher[4] = np.nan, np.inf
  valid = jnp.array([True] * 4 + [False])
  hard, soft = triplet_oracle(x[:4], teacher[:4], labels[:4])
  found, slope = compiled.value_and_grad(adaptation.softmax_triplet)(
    x, labels, valid
  )
  np.testing.assert_allclose(found, hard, rtol=1e-5)
  assert np.isfinite(slope).all() and not np.any(slope[4])
  found, slopes = compiled.value_and_grad(
    adaptation.soft_softmax_triplet, argnums=(0, 1)
  )(x, teacher, labels, valid)
  np.testing.assert_allclose(found, soft, rtol=1e-5)
  assert np.isfinite(slopes[0]).all() and not np.any(slopes[1])


def test_anchors_without_a_pair_do_not_count():
  labels = np.array([0, 0, 1])
  x = rows(0, 3, 4)
  hard, _ = triplet_oracle(x, x, labels)  # the third has no positive
  found = softmax_triplet(x, labels, flags(3))
  np.testing.assert_allclose(found, hard, rtol=1e-5)
  assert float(softmax_triplet(x, np.zeros(3, int), flags(3))) == 0
