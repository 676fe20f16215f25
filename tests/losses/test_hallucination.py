from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import hallucination, metric

KEY = jax.random.key(0)
draw = jax.jit(hallucination.draw, static_argnums=2)
per_domain = jax.jit(hallucination.per_domain)
novel_domain = jax.jit(
  hallucination.novel_domain,
  static_argnames=('novel', 'mix_weights', 'mix_own'),
)


def dfs(num=3, dim=5, mean_variance=1.0, spread=0.01):
  rng = np.random.default_rng(0)
  m = rng.normal(size=(num, dim))
  ones = np.ones((num, dim))
  rows = [m, 0.1 * ones, mean_variance * ones, spread * ones]
  return jnp.asarray(np.stack(rows, axis=1), jnp.float32)


def batch(dim=5, size=6):
  rng = np.random.default_rng(1)
  return jnp.asarray(rng.normal(size=(size, dim)), jnp.float32)


def test_mean_zero_and_variance_one_give_back_the_embedding():
  b = batch()
  out = per_domain(jnp.zeros((2, 5)), jnp.ones((2, 5)), b)
  np.testing.assert_array_equal(out, np.stack([b, b]))


def test_distances_do_not_depend_on_the_mean():
  """The triplet loss on F_k sees sigma_k only (methods: DFH, 14.4)."""
  b, variances = batch(), jnp.full((2, 5), 2.0)
  near = per_domain(jnp.zeros((2, 5)), variances, b)
  far = per_domain(jnp.full((2, 5), 3.0), variances, b)
  np.testing.assert_allclose(
    metric.pairwise_distance(near[0]),
    metric.pairwise_distance(far[0]),
    atol=1e-5,
  )


@pytest.mark.parametrize('rule', get_args(hallucination.Negative))
def test_draws_are_positive_and_finite_when_variance_would_be_negative(rule):
  drawn = draw(KEY, dfs(mean_variance=0.01, spread=4.0), rule)
  assert np.isfinite(drawn.means).all()
  assert (np.asarray(drawn.variances) >= hallucination.FLOOR).all()
  assert np.isfinite(drawn.variances).all()
  assert 0.2 < float(drawn.negative) < 0.8
  assert drawn.dead == 0


def test_resampled_variances_have_the_law_above_zero():
  """Normal of mean 1 and variance 1 above 0: mean 1 + phi(1) / Phi(1)."""
  m, v, p, q = (
    np.zeros(20_000),
    np.ones(20_000),
    np.ones(20_000),
    np.ones(20_000),
  )
  dfs = np.stack([m, v, p, q])[None].astype(np.float32)
  drawn = draw(jax.random.key(0), jnp.asarray(dfs), 'resample')
  assert float(drawn.variances.mean()) == pytest.approx(1.2876, abs=0.02)


def test_dead_channels_are_counted_apart_from_negative_draws():
  """Of three domains one has two dead channels of five, none is negative."""
  dead = np.array(dfs())
  dead[1, 2:, :2] = 0
  drawn = draw(KEY, dead, 'clamp')
  np.testing.assert_allclose(drawn.dead, 2 / 15, rtol=1e-6)
  assert drawn.negative == 0
  np.testing.assert_allclose(drawn.variances[1, :2], hallucination.FLOOR)


def test_draws_have_the_moments_they_are_given():
  many = jax.jit(jax.vmap(lambda k: draw(k, dfs(), 'clamp')[:2]))(
    jax.random.split(KEY, 4000)
  )
  means, variances = (np.asarray(x) for x in many)
  np.testing.assert_allclose(means.mean(0), dfs()[:, 0], atol=0.03)
  np.testing.assert_allclose(means.var(0), dfs()[:, 1], atol=0.02)
  np.testing.assert_allclose(variances.mean(0), 1.0, atol=0.02)
  np.testing.assert_allclose(variances.var(0), 0.01, atol=0.002)


def novel(
  name, alpha=(1.0, 1.0, 1.0), mix='batch', key=KEY, own='hallucinated'
):
  b = batch()
  drawn = draw(KEY, dfs(), 'clamp')
  out = novel_domain(
    key, name, drawn, 10 + b, b, jnp.int32(1), jnp.array(alpha), mix, own
  )
  every = per_domain(drawn.means, drawn.variances, b)
  if own == 'raw':
    every = every.at[1].set(10 + b)
  return np.asarray(out), np.asarray(every)


def test_dirichlet_of_one_heavy_domain_is_that_domain():
  out, every = novel('dirichlet', alpha=(1e-4, 1e-4, 1e4))
  np.testing.assert_allclose(out, every[2], rtol=1e-3, atol=1e-3)


def test_dirichlet_mixes_variances_not_features():
  out, every = novel('dirichlet')
  spread = out.std(axis=0) / np.asarray(batch()).std(axis=0)
  lowest = (every.std(axis=1) / np.asarray(batch()).std(axis=0)).min(axis=0)
  highest = (every.std(axis=1) / np.asarray(batch()).std(axis=0)).max(axis=0)
  assert (spread >= lowest - 1e-5).all() and (spread <= highest + 1e-5).all()


@pytest.mark.parametrize('mix', get_args(hallucination.Mix))
def test_dirichlet_mixup_uses_the_own_raw_feature(mix):
  out, _ = novel('dirichlet_mixup', (1e-4, 1e4, 1e-4), mix, own='raw')
  np.testing.assert_allclose(out, 10 + batch(), rtol=1e-3)


@pytest.mark.parametrize('mix', get_args(hallucination.Mix))
def test_feature_mixup_stays_between_two_domains(mix):
  for seed in range(5):
    out, every = novel('feature_mixup', mix=mix, key=jax.random.key(seed))
    between = [
      (out >= np.minimum(every[a], every[b]) - 1e-5).all()
      and (out <= np.maximum(every[a], every[b]) + 1e-5).all()
      for a, b in ((0, 1), (0, 2), (1, 2))
    ]
    assert any(between)


def shares(out, every):
  """Weights of the domains in each image's features, by least squares."""
  found = [
    np.linalg.lstsq(every[:, row].T, out[row], rcond=None)
    for row in range(len(out))
  ]
  assert (
    max(
      np.abs(every[:, r].T @ f[0] - out[r]).max() for r, f in enumerate(found)
    )
    < 1e-3
  )
  return np.asarray([weights for weights, *_ in found])


@pytest.mark.parametrize('kind', ['dirichlet_mixup', 'feature_mixup'])
@pytest.mark.parametrize('mix', get_args(hallucination.Mix))
@pytest.mark.parametrize('own', get_args(hallucination.Own))
def test_mixup_weights(kind, mix, own):
  """Of the batch or of an image; Feature-MixUp's are of two other domains."""
  drawn = []
  for seed in range(40):
    out, every = novel(kind, mix=mix, key=jax.random.key(seed), own=own)
    weights = shares(out, every)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-3)
    assert (np.ptp(weights, axis=0).max() < 1e-3) == (mix == 'batch')
    used = (np.abs(weights) > 1e-3).sum(axis=1)
    if kind == 'feature_mixup':
      assert used.max() == 2
    drawn.append(weights[0])
  drawn = np.asarray(drawn)
  assert drawn.min() > -1e-3
  # Both laws are flat: no domain is favoured, and shares reach to both ends.
  np.testing.assert_allclose(drawn.mean(axis=0), 1 / 3, atol=0.15)
  assert drawn.max() > 0.8
