"""Invariant 9: the bound of an identity, and the statistics without noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.algorithms.statistics import moments


def of(features, labels, num=4, batch=3):
  seen = moments.zeros(num, features.shape[1])
  for first in range(0, len(labels), batch):
    part = features[first : first + batch]
    pad = batch - len(part)
    seen = moments.merge(
      seen,
      jnp.asarray(np.pad(part, ((0, pad), (0, 0)), constant_values=np.nan)),
      jnp.asarray(np.pad(labels[first : first + batch], (0, pad))),
      jnp.arange(batch) < len(part),
    )
  return seen


def plain(features, labels):
  groups = [features[labels == k] for k in np.unique(labels)]
  mu = np.array([g.mean(0) for g in groups])
  var = np.array([g.var(0) for g in groups])
  return np.stack([mu.mean(0), mu.var(0), var.mean(0), var.var(0)])


@pytest.mark.parametrize('batch', [1, 3, 7, 64])
def test_statistics_equal_numpy_in_any_batches(batch):
  rng = np.random.default_rng(0)
  labels = np.array([0, 1, 1, 2, 2, 2, 3, 0, 3, 3], np.int32)
  features = rng.normal(5, 2, (10, 6)).astype(np.float32)
  out = moments.statistics(of(features, labels, batch=batch))
  np.testing.assert_allclose(out, plain(features, labels), rtol=2e-5, atol=1e-6)


def test_large_mean_loses_no_digits():
  rng = np.random.default_rng(1)
  labels = np.repeat(np.arange(4, dtype=np.int32), 5)
  features = (1000 + rng.normal(0, 0.1, (20, 3))).astype(np.float32)
  out = moments.statistics(of(features, labels))
  np.testing.assert_allclose(out[2], plain(features, labels)[2], rtol=1e-2)


def test_absent_identities_do_not_count_and_singletons_have_no_variance():
  features = np.array([[1.0], [3.0]], np.float32)
  out = moments.statistics(of(features, np.array([0, 2], np.int32)))
  np.testing.assert_allclose(out[:, 0], [2.0, 1.0, 0.0, 0.0])


def test_nothing_seen_is_finite():
  assert np.isfinite(moments.statistics(moments.zeros(3, 2))).all()


def test_copies_of_a_domain_leave_the_statistics():
  rng = np.random.default_rng(2)
  labels = np.array([0, 0, 1, 1], np.int32)
  features = rng.normal(size=(4, 3)).astype(np.float32)
  once = moments.statistics(of(features, labels))
  twice = moments.statistics(
    of(np.tile(features, (2, 1)), np.concatenate([labels, labels + 2]))
  )
  np.testing.assert_allclose(once, twice, rtol=1e-5, atol=1e-7)


KEY = jax.random.key(0)
sensitivity = moments.sensitivity
merge = jax.jit(moments.merge_centred)
records = jax.jit(moments.records, static_argnums=2)
release = jax.jit(moments.release, static_argnums=4)


def of_released_moments(features, labels, clip, centre=None, num=None):
  """Moments of images around a centre, zeros by default, in two batches."""
  num = num or int(labels.max()) + 1
  centre = np.zeros(features.shape[1], 'f4') if centre is None else centre
  seen = moments.centred_zeros(num, jnp.asarray(centre))
  half = len(labels) // 2
  for part in (slice(half), slice(half, None)):
    valid = jnp.ones(len(labels[part]), bool)
    seen = merge(
      seen,
      jnp.asarray(features[part], jnp.float32),
      jnp.asarray(labels[part], jnp.int32),
      valid,
      clip,
    )
  return seen


def norms(found, clip, squares):
  each = records(found.moments, clip, squares)
  return np.linalg.norm(np.asarray(each).reshape(len(each), -1), axis=1)


@pytest.mark.parametrize('dim', [1, 12])
def test_no_identity_exceeds_the_sensitivity(dim):
  """20,000 identities in all: one to six images, inside and far outside."""
  rng, clip, num = np.random.default_rng(dim), 0.7, 10000
  labels = np.repeat(np.arange(num), rng.integers(1, 7, num))
  scale = 10.0 ** rng.uniform(-2, 2, num)[labels, None]
  shift = 10.0 ** rng.uniform(-2, 2, (num, dim)) * rng.normal(size=(num, dim))
  features = shift[labels] + scale * rng.normal(size=(len(labels), dim))
  # Of some identities all features are on one axis, those of the largest norm.
  features[labels % 3 == 0, 1:] = 0
  seen = of_released_moments(features, labels, clip)
  for squares in (True, False):
    found, bound = norms(seen, clip, squares), sensitivity(squares)
    assert found.max() <= bound * (1 + 1e-5)
    assert found.max() > 0.99 * bound
    assert (found < 0.9 * bound).any()


@pytest.mark.parametrize('squares, bound', [(True, 2**0.5), (False, 1.0)])
def test_identities_that_attain_it(squares, bound):
  """One image at the clip, or two opposite ones, whose mean is zero."""
  features = np.array([[3.0, 0.0], [0.0, 3.0], [0.0, -3.0]], 'f4')
  found = norms(
    of_released_moments(features, np.array([0, 1, 1]), 3.0), 3.0, squares
  )
  np.testing.assert_allclose(found, bound, rtol=1e-6)
  assert sensitivity(squares) == pytest.approx(bound)


def example(scale=1.0, seed=0):
  rng = np.random.default_rng(seed)
  labels = np.array([0, 1, 1, 2, 2, 2, 4, 0, 4, 4], 'i4')
  return scale * rng.normal(1, 1, (10, 6)).astype('f4'), labels


@pytest.mark.parametrize('centre', [0.0, -0.5])
def test_without_noise_and_clip_they_are_the_statistics(centre):
  features, labels = example()
  plain = jax.jit(moments.merge)(
    moments.zeros(5, 6), features, labels, jnp.ones(10, bool)
  )
  wanted = np.asarray(moments.statistics(plain))
  centre = np.full(6, centre, 'f4')
  clip = float(np.linalg.norm(features - centre, axis=1).max())
  seen = of_released_moments(features, labels, clip, centre)
  found = release(KEY, seen, clip, 0.0, True)
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
  means = release(KEY, seen, clip, 0.0, False)
  np.testing.assert_allclose(means[::2], wanted[::2], rtol=1e-4, atol=1e-5)
  assert not np.asarray(means[1::2]).any()
  near = of_released_moments(features, labels, clip / 2, centre)
  clipped = release(KEY, near, clip / 2, 0.0, True)
  assert not np.allclose(clipped[0], wanted[0], rtol=1e-2)


@pytest.mark.parametrize('squares', [True, False])
def test_variances_are_never_negative(squares):
  features, labels = example(scale=0.1)
  seen = of_released_moments(features, labels, 2.0)

  def one(key):
    return release(key, seen, 2.0, 3.0, squares)

  found = np.asarray(jax.vmap(one)(jax.random.split(KEY, 200)))
  assert np.isfinite(found).all()
  assert (found[:, 1:] >= 0).all() and (found[:, 2] == 0).any()
  assert (found[:, 0] < 0).any()


@pytest.mark.parametrize('squares', [True, False])
def test_the_noise_is_that_of_the_sensitivity(squares):
  """Of images at the centre everything but the noise is zero."""
  centre = np.linspace(0, 1, 40000, dtype='f4')
  features, labels = np.tile(centre, (4, 1)), np.array([0, 1, 2, 2])
  seen = of_released_moments(
    features, labels, 2.0, centre, num=9
  )  # three identities of nine
  found = release(KEY, seen, 2.0, 1.5, squares)
  bound = sensitivity(squares)
  off = np.asarray(found[0]) - centre
  assert off.std() == pytest.approx(1.5 * bound * 2.0 / 3, rel=0.02)
  within = np.asarray(found[2])
  assert (within > 0).mean() == pytest.approx(0.5, abs=0.02)
  deviation = np.sqrt(np.square(within[within > 0]).mean())
  assert deviation == pytest.approx(1.5 * bound * 4.0 / 3, rel=0.02)
  other = release(jax.random.key(1), seen, 2.0, 1.5, squares)
  assert abs(np.corrcoef(off, np.asarray(other[0]) - centre)[0, 1]) < 0.02
  assert abs(np.corrcoef(off[within > 0], within[within > 0])[0, 1]) < 0.03


def test_one_identity_moves_its_own_record_only():
  features, labels = example()
  before = records(
    of_released_moments(features, labels, 1.0).moments, 1.0, True
  )
  for value in (np.nan, np.inf, 1e30, -50.0):
    other = np.where((labels == 2)[:, None], np.float32(value), features)
    seen = of_released_moments(other, labels, 1.0)
    after = records(seen.moments, 1.0, True)
    np.testing.assert_array_equal(
      np.delete(after, 2, 0), np.delete(before, 2, 0)
    )
    assert np.linalg.norm(after[2]) <= 2**0.5 * (1 + 1e-5)
    found = release(KEY, seen, 1.0, 0.0, True)
    assert np.isfinite(found).all()


def test_images_do_not_raise_the_weight_of_an_identity():
  features, labels = example()
  rows = np.flatnonzero(labels == 1)
  more = np.concatenate([np.arange(10), np.tile(rows, 4)])
  once = release(
    KEY, of_released_moments(features, labels, 1.5), 1.5, 0.0, True
  )
  often = of_released_moments(features[more], labels[more], 1.5)
  found = release(KEY, often, 1.5, 0.0, True)
  np.testing.assert_allclose(found, once, rtol=1e-4, atol=1e-6)
