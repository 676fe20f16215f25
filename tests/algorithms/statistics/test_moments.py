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
