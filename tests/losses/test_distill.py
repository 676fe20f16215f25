from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import distill, similarity

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
def test_worked_numbers(normalise, expected):
  student = jnp.array([[3.0, 4.0], [2.0, 0.0]])
  teacher = jnp.array([[0.0, 1.0], [1.0, 0.0]])
  loss = distill.feature_mse(student, teacher, ALL, normalise)
  np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.gives_nan
def test_rows_that_are_not_real_do_not_count():
  student = jnp.array([[3.0, 4.0], [np.nan, 7.0]])
  teacher = jnp.array([[0.0, 1.0], [1.0, 0.0]])
  valid = jnp.array([True, False])
  loss = distill.feature_mse(student, teacher, valid, 'none')
  np.testing.assert_allclose(loss, 9.0)
  assert distill.feature_mse(student, teacher, valid & False, 'both') == 0


@pytest.mark.parametrize('normalise', get_args(distill.Normalise))
def test_the_mean_teacher_has_no_loss_under_every_rule(normalise):
  """With 'both' teachers must agree on a direction: a mean is shorter."""
  rng = np.random.default_rng(0)
  teachers = jnp.asarray(rng.standard_normal((3, 2, 5)))
  if normalise == 'both':
    teachers = teachers[:1] * jnp.array([1.0, 2.0, 0.5])[:, None, None]
  if normalise != 'none':
    teachers = similarity.unit(teachers)
  teacher = teachers.mean(axis=0)
  loss = distill.feature_mse(teacher, teacher, ALL, normalise)
  np.testing.assert_allclose(loss, 0.0, atol=1e-12)
  assert distill.feature_mse(teacher + 0.1, teacher, ALL, normalise) > 1e-4


def test_length_of_the_student_matters_unless_both_are_normalised():
  teacher = similarity.unit(jnp.array([[1.0, 2.0], [3.0, -1.0]]))
  losses = {
    rule: [
      float(distill.feature_mse(x * teacher, teacher, ALL, rule))
      for x in (1.0, 5.0)
    ]
    for rule in get_args(distill.Normalise)
  }
  np.testing.assert_allclose(losses['both'], 0.0, atol=1e-12)
  assert losses['none'] == losses['teacher_only']
  np.testing.assert_allclose(losses['none'], [0.0, 16 / 2], rtol=1e-5)


def test_units_and_a_zero_row_have_finite_gradients():
  rows = jnp.array([[3.0, 4.0], [0.0, 0.0]])
  np.testing.assert_allclose(similarity.unit(rows), [[0.6, 0.8], [0.0, 0.0]])

  def loss(x):
    return distill.feature_mse(x, jnp.ones((2, 2)), ALL, 'both')

  assert np.isfinite(jax.grad(loss)(rows)).all()


def test_the_divergence_is_of_the_teacher_from_the_student():
  """T^2 KL(q || p) by its definition; it differs from KL(p || q)."""
  rng = np.random.default_rng(5)
  student, teacher = rng.normal(size=(2, 3, 4)) * 3
  valid, temperature = np.array([True, True, False]), 2.0

  def law(scores):
    weights = np.exp(scores / temperature)
    return weights / weights.sum(axis=1, keepdims=True)

  p, q = law(student), law(teacher)
  forward = (q * np.log(q / p)).sum(axis=1)[:2].mean() * temperature**2
  backward = (p * np.log(p / q)).sum(axis=1)[:2].mean() * temperature**2
  assert abs(forward - backward) > 0.1
  found = distill.divergence(
    jnp.asarray(student), jnp.asarray(teacher), jnp.asarray(valid), temperature
  )
  np.testing.assert_allclose(found, forward, rtol=1e-5)
