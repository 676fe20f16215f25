from typing import get_args

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import metric
from fedreid_jax.losses.metric import circle, weighted_triplet

hard_triplet = jax.jit(metric.hard_triplet, static_argnums=3)
pairwise_distance = jax.jit(metric.pairwise_distance)
feature_mse = jax.jit(metric.feature_mse, static_argnums=3)
unit = jax.jit(metric.unit)


def test_hard_triplet_worked_numbers():
  """Four points on a line, two identities.

  a0=0, a1=3 | b0=4, b1=10, margin 0.5:
  a0: 3 - 4 + 0.5 -> 0; a1: 3 - 1 + 0.5 = 2.5; b0: 6 - 1 + 0.5 = 5.5;
  b1: 6 - 7 + 0.5 -> 0. Mean 2.
  """
  x = jnp.array([[0.0], [3.0], [4.0], [10.0]])
  labels = jnp.array([0, 0, 1, 1])
  loss = hard_triplet(x, labels, jnp.ones(4, bool), 0.5)
  np.testing.assert_allclose(loss, 2.0, rtol=1e-5)


def test_padding_changes_nothing():
  x = jnp.array([[0.0], [3.0], [4.0], [10.0], [3.5]])
  labels = jnp.array([0, 0, 1, 1, 0])
  valid = jnp.array([True] * 4 + [False])
  loss = hard_triplet(x, labels, valid, 0.5)
  np.testing.assert_allclose(loss, 2.0, rtol=1e-5)


def test_no_negative_in_the_batch_is_zero_not_nan():
  x = jnp.array([[1.0], [2.0]])
  both = jnp.ones(2, bool)
  loss, grad = compiled.value_and_grad(
    lambda v: hard_triplet(v, jnp.array([0, 0]), both, 0.5)
  )(x)
  assert loss == 0
  np.testing.assert_array_equal(grad, np.zeros_like(x))


def test_gradient_is_finite_where_all_features_are_equal():
  grad = compiled.grad(
    lambda v: hard_triplet(v, jnp.array([0, 0, 1, 1]), jnp.ones(4, bool), 0.5)
  )(jnp.ones((4, 3)))
  assert np.isfinite(grad).all()


def test_distances_equal_numpy():
  x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
  expected = np.linalg.norm(x[:, None] - x[None], axis=-1)
  out = pairwise_distance(jnp.asarray(x))
  off = ~np.eye(6, dtype=bool)
  np.testing.assert_allclose(np.asarray(out)[off], expected[off], rtol=1e-4)


def test_a_common_mean_costs_no_digits():
  """At D = 2048 and a mean of 10 the distances are still those of float64."""
  rng = np.random.default_rng(0)
  x = 10 + 0.1 * rng.normal(size=(8, 2048))
  x = x.astype(np.float32)
  wide = x.astype(np.float64)
  expected = np.sqrt(((wide[:, None] - wide[None]) ** 2).sum(-1))
  out = pairwise_distance(jnp.asarray(x))
  np.testing.assert_array_equal(np.diag(out), 0.0)
  np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_finite_where_rows_are_equal():
  def loss(x):
    return pairwise_distance(x).sum()

  x = jnp.asarray([[1.0, 2.0], [1.0, 2.0], [4.0, 6.0]])
  assert np.isfinite(compiled.grad(loss)(x)).all()
  np.testing.assert_allclose(loss(x), 20.0, rtol=1e-5)


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


@pytest.mark.parametrize('seed', range(2))
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
  gradient = compiled.grad(loss)(jnp.asarray(z, jnp.float32), labels)
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
  gradient = compiled.grad(loss)(jnp.asarray(more, jnp.float32), padded, valid)
  assert not np.asarray(gradient)[7:].any()


@pytest.mark.parametrize('labels', [[0, 0, 0], [0, 1, 2]])
def test_anchors_without_a_positive_or_a_negative_add_nothing(labels):
  z = jnp.asarray(sample(num=3)[0], jnp.float32)
  value, gradient = compiled.value_and_grad(loss)(z, labels)
  assert value == 0 and not np.asarray(gradient).any()


def test_no_valid_row():
  z = jnp.zeros((3, 2))
  value, gradient = compiled.value_and_grad(loss)(z, [0, 0, 1], [False] * 3)
  assert value == 0 and not np.asarray(gradient).any()


def loss_weighted_triplet(features, labels, valid=None, **options):
  valid = np.ones(len(labels), bool) if valid is None else valid
  return jax.jit(weighted_triplet, static_argnames='squared')(
    jnp.asarray(features, jnp.float32),
    jnp.asarray(labels),
    jnp.asarray(valid),
    **options,
  )


def oracle_weighted_triplet(features, labels, squared):
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
    loss_weighted_triplet([[0.0], [1.0], [2.0]], [0, 0, 1]), expected, rtol=1e-5
  )


def test_weights_of_far_images_do_not_vanish():
  """Gaps -100, 0 and -100: only log 2 of the middle one is left of three."""
  far = [[0.0], [100.0], [200.0]]
  np.testing.assert_allclose(
    loss_weighted_triplet(far, [0, 0, 1]), np.log(2) / 3, rtol=1e-5
  )


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('squared', [False, True])
@pytest.mark.parametrize('scale', [0.5, 5.0])
def test_against_a_loop_over_anchors(seed, squared, scale):
  rng = np.random.default_rng(seed)
  features = scale * rng.standard_normal((8, 4))
  labels = np.array([0, 0, 0, 1, 1, 2, 3, 3])
  np.testing.assert_allclose(
    loss_weighted_triplet(features, labels, squared=squared),
    oracle_weighted_triplet(features, labels, squared),
    rtol=1e-4,
  )


@pytest.mark.parametrize('squared', [False, True])
def test_padded_rows_do_not_count_weighted_triplet(squared):
  rng = np.random.default_rng(0)
  features = rng.standard_normal((6, 3))
  labels = [0, 0, 1, 1, 2, 2]
  more = np.concatenate([features, np.full((2, 3), 50.0)])
  valid = np.arange(8) < 6
  np.testing.assert_allclose(
    loss_weighted_triplet(more, [*labels, 0, 3], valid, squared=squared),
    loss_weighted_triplet(features, labels, squared=squared),
    rtol=1e-5,
  )


@pytest.mark.parametrize('squared', [False, True])
def test_gradients_are_finite_where_images_coincide(squared):
  features = jnp.ones((4, 3))
  gradient = compiled.grad(
    lambda x: loss_weighted_triplet(x, [0, 0, 1, 1], squared=squared)
  )(features)
  assert np.isfinite(gradient).all()


def test_without_a_negative_there_is_no_loss():
  features = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2)))
  value, gradient = compiled.value_and_grad(loss_weighted_triplet)(
    features, [0, 0, 0]
  )
  assert value == 0 and not np.asarray(gradient).any()


def test_cosines_worked_by_hand():
  x = jnp.array([[3.0, 4.0], [2.0, 0.0], [1.0, 1.0], [3.0, 4.0]])
  y = jnp.array([[8.0, 6.0], [0.0, 5.0], [-2.0, -2.0], [5.0, 12.0]])
  found = jax.jit(metric.cosine)(x, y)
  np.testing.assert_allclose(found, [0.96, 0.0, -1.0, 63 / 65], rtol=1e-6)
  found = jax.jit(metric.pairwise_cosine)(x)
  np.testing.assert_allclose(found[0], [1.0, 0.6, 7 / 50**0.5, 1.0], rtol=1e-6)


COSINE = jax.jit(jax.value_and_grad(lambda x, y: metric.cosine(x, y).sum()))


@pytest.mark.parametrize('length', [1e-12, 1e-6, 1e6, 1e18])
def test_the_cosine_does_not_depend_on_lengths(length):
  x, y, length = np.float32([[3, 4]]), np.float32([[8, 6]]), np.float32(length)
  assert COSINE(length * x, length * x)[0] == 1.0
  value, gradient = COSINE(length * x, length * y)
  np.testing.assert_allclose(value, 0.96, rtol=1e-6)
  wanted = np.asarray(COSINE(x, y)[1]) / length
  np.testing.assert_allclose(gradient, wanted, rtol=1e-5)


def test_zeros_have_no_direction_and_a_finite_gradient():
  zero, one = jnp.zeros((1, 3)), jnp.ones((1, 3))
  value, grad = compiled.value_and_grad(lambda x: metric.cosine(x, one).sum())(
    zero
  )
  assert value == 0.0 and np.isfinite(grad).all()
  np.testing.assert_array_equal(unit(zero), zero)


FEATURES = jnp.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [9.0, 9.0]])
LABELS = jnp.array([0, 1, 2, 0])
VALID = jnp.array([True, True, True, False])
CENTRES = jnp.array([[0.6, 0.8], [0.0, 5.0], [7.0, 0.0]])
PRESENT = jnp.array([True, True, False])


def loss_rectification(
  features=FEATURES, centres=CENTRES, present=PRESENT, kind='cos'
):
  run = jax.jit(metric.rectification, static_argnames='kind')
  return run(features, LABELS, VALID, centres, present, kind)


@pytest.mark.parametrize(
  'kind, expected',
  [
    # Cosines 0.6 and 1; the third identity has no centre, the fourth row is
    # padding.
    ('cos', 0.4 / 2),
    # (2.4^2 + 0.8^2) / 2 and 3^2 / 2.
    ('edu', (3.2 + 4.5) / 2),
    ('mixed', 0.5 * 0.2 + 0.5 * 3.85),
  ],
)
def test_worked_numbers(kind, expected):
  np.testing.assert_allclose(loss_rectification(kind=kind), expected, rtol=1e-5)


def test_lengths_of_centres_do_not_matter_to_the_angle():
  scaled = CENTRES * jnp.array([[10.0], [0.1], [3.0]])
  np.testing.assert_allclose(
    loss_rectification(), loss_rectification(centres=scaled), rtol=1e-5
  )


@pytest.mark.parametrize('kind', get_args(metric.Kind))
def test_without_any_centre_there_is_no_loss(kind):
  nobody = jnp.zeros(3, bool)
  value, gradient = compiled.value_and_grad(
    lambda x: loss_rectification(x, jnp.zeros_like(CENTRES), nobody, kind)
  )(FEATURES)
  assert value == 0 and not np.asarray(gradient).any()


def test_centres_are_constants():
  for kind in get_args(metric.Kind):
    gradient = compiled.grad(
      lambda c, kind=kind: loss_rectification(centres=c, kind=kind)
    )(CENTRES)
    assert not np.asarray(gradient).any()


def test_a_centre_of_zeros_is_at_right_angles():
  zeros = jnp.zeros_like(CENTRES)
  value, gradient = compiled.value_and_grad(loss_rectification)(FEATURES, zeros)
  assert value == 1 and not np.asarray(gradient).any()
  np.testing.assert_allclose(
    loss_rectification(centres=zeros, kind='edu'),
    (9 / 2 + 4 / 2) / 2,
    rtol=1e-6,
  )


ALL = jnp.ones(2, bool)


@pytest.mark.parametrize(
  'normalise, expected',
  [
    # squares 3^2 + 3^2 and 1 + 0 of four numbers
    ('none', 19 / 4),
    ('teacher_only', 19 / 4),
    # rows (0.6, 0.8) and (1, 0): 0.6^2 + 0.2^2 and 0 of four
    ('both', 0.4 / 4),
  ],
)
def test_worked_numbers_distill(normalise, expected):
  student = jnp.array([[3.0, 4.0], [2.0, 0.0]])
  teacher = jnp.array([[0.0, 1.0], [1.0, 0.0]])
  loss = feature_mse(student, teacher, ALL, normalise)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.gives_nan
def test_rows_that_are_not_real_do_not_count():
  student = jnp.array([[3.0, 4.0], [np.nan, 7.0]])
  teacher = jnp.array([[0.0, 1.0], [1.0, 0.0]])
  valid = jnp.array([True, False])
  loss = feature_mse(student, teacher, valid, 'none')
  np.testing.assert_allclose(loss, 9.0)
  assert feature_mse(student, teacher, valid & False, 'both') == 0


@pytest.mark.parametrize('normalise', get_args(metric.Normalise))
def test_the_mean_teacher_has_no_loss_under_every_rule(normalise):
  """With 'both' teachers must agree on a direction: a mean is shorter."""
  rng = np.random.default_rng(0)
  teachers = jnp.asarray(rng.standard_normal((3, 2, 5)))
  if normalise == 'both':
    teachers = teachers[:1] * jnp.array([1.0, 2.0, 0.5])[:, None, None]
  if normalise != 'none':
    teachers = unit(teachers)
  teacher = teachers.mean(axis=0)
  loss = feature_mse(teacher, teacher, ALL, normalise)
  np.testing.assert_allclose(loss, 0.0, atol=1e-12)
  assert feature_mse(teacher + 0.1, teacher, ALL, normalise) > 1e-4


def test_length_of_the_student_matters_unless_both_are_normalised():
  teacher = unit(jnp.array([[1.0, 2.0], [3.0, -1.0]]))
  losses = {
    rule: [
      float(feature_mse(x * teacher, teacher, ALL, rule)) for x in (1.0, 5.0)
    ]
    for rule in get_args(metric.Normalise)
  }
  np.testing.assert_allclose(losses['both'], 0.0, atol=1e-12)
  assert losses['none'] == losses['teacher_only']
  np.testing.assert_allclose(losses['none'], [0.0, 16 / 2], rtol=1e-5)


def test_units_and_a_zero_row_have_finite_gradients():
  rows = jnp.array([[3.0, 4.0], [0.0, 0.0]])
  np.testing.assert_allclose(unit(rows), [[0.6, 0.8], [0.0, 0.0]])

  def loss(x):
    return feature_mse(x, jnp.ones((2, 2)), ALL, 'both')

  assert np.isfinite(compiled.grad(loss)(rows)).all()
