import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses.weighted_triplet import weighted_triplet


def loss(features, labels, valid=None, **options):
  valid = np.ones(len(labels), bool) if valid is None else valid
  return jax.jit(weighted_triplet, static_argnames='squared')(
    jnp.asarray(features, jnp.float32),
    jnp.asarray(labels),
    jnp.asarray(valid),
    **options,
  )


def oracle(features, labels, squared):
  each = []
  for i, anchor in enumerate(features):
    away = np.linalg.norm(features - anchor, axis=1)
    same = np.asarray(labels) == labels[i]
    if same.all():
      continue
    near, far = away[same], away[~same]
    p = np.exp(near - near.max())
    n = np.exp(far.min() - far)
    gap = (p * near).sum() / p.sum() - (n * far).sum() / n.sum()
    if squared:
      y = -1 if gap > 0 else 1
      gap = -y * min(gap**2, 88)
    each.append(np.log1p(np.exp(gap)))
  return np.mean(each)


def test_worked_number():
  """Points 0 and 1 of one identity, 2 of another.

  e / (1 + e) = 0.731059 is the farther positive's weight and so d+; d- is 2 and
  1. The lone point has d+ 0 and d- = 1 * 0.731059 + 2 * 0.268941.
  """
  gaps = np.array([0.731059 - 2, 0.731059 - 1, -1.268941])
  expected = np.log1p(np.exp(gaps)).mean()
  np.testing.assert_allclose(
    loss([[0.0], [1.0], [2.0]], [0, 0, 1]), expected, rtol=1e-5
  )


def test_weights_of_far_images_do_not_vanish():
  """Gaps -100, 0 and -100: only log 2 of the middle one is left of three."""
  far = [[0.0], [100.0], [200.0]]
  np.testing.assert_allclose(loss(far, [0, 0, 1]), np.log(2) / 3, rtol=1e-5)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('squared', [False, True])
@pytest.mark.parametrize('scale', [0.5, 5.0])
def test_against_a_loop_over_anchors(seed, squared, scale):
  rng = np.random.default_rng(seed)
  features = scale * rng.standard_normal((8, 4))
  labels = np.array([0, 0, 0, 1, 1, 2, 3, 3])
  np.testing.assert_allclose(
    loss(features, labels, squared=squared),
    oracle(features, labels, squared),
    rtol=1e-4,
  )


@pytest.mark.parametrize('squared', [False, True])
def test_padded_rows_do_not_count(squared):
  rng = np.random.default_rng(0)
  features = rng.standard_normal((6, 3))
  labels = [0, 0, 1, 1, 2, 2]
  more = np.concatenate([features, np.full((2, 3), 50.0)])
  valid = np.arange(8) < 6
  np.testing.assert_allclose(
    loss(more, [*labels, 0, 3], valid, squared=squared),
    loss(features, labels, squared=squared),
    rtol=1e-5,
  )


@pytest.mark.parametrize('squared', [False, True])
def test_gradients_are_finite_where_images_coincide(squared):
  features = jnp.ones((4, 3))
  gradient = jax.grad(loss)(features, [0, 0, 1, 1], squared=squared)
  assert np.isfinite(gradient).all()


def test_without_a_negative_there_is_no_loss():
  features = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2)))
  value, gradient = jax.value_and_grad(loss)(features, [0, 0, 0])
  assert value == 0 and not np.asarray(gradient).any()
