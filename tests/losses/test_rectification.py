from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import rectification

FEATURES = jnp.array([[3.0, 0.0], [0.0, 2.0], [1.0, 1.0], [9.0, 9.0]])
LABELS = jnp.array([0, 1, 2, 0])
VALID = jnp.array([True, True, True, False])
CENTRES = jnp.array([[0.6, 0.8], [0.0, 5.0], [7.0, 0.0]])
PRESENT = jnp.array([True, True, False])


def loss(features=FEATURES, centres=CENTRES, present=PRESENT, kind='cos'):
  run = jax.jit(rectification.rectification, static_argnames='kind')
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
  np.testing.assert_allclose(loss(kind=kind), expected, rtol=1e-5)


def test_lengths_of_centres_do_not_matter_to_the_angle():
  scaled = CENTRES * jnp.array([[10.0], [0.1], [3.0]])
  np.testing.assert_allclose(loss(), loss(centres=scaled), rtol=1e-5)


@pytest.mark.parametrize('kind', get_args(rectification.Kind))
def test_without_any_centre_there_is_no_loss(kind):
  nobody = jnp.zeros(3, bool)
  value, gradient = jax.value_and_grad(loss)(
    FEATURES, jnp.zeros_like(CENTRES), nobody, kind
  )
  assert value == 0 and not np.asarray(gradient).any()


def test_centres_are_constants():
  for kind in get_args(rectification.Kind):
    gradient = jax.grad(lambda c, kind=kind: loss(centres=c, kind=kind))(
      CENTRES
    )
    assert not np.asarray(gradient).any()


def test_a_centre_of_zeros_is_at_right_angles():
  zeros = jnp.zeros_like(CENTRES)
  value, gradient = jax.value_and_grad(loss)(FEATURES, zeros)
  assert value == 1 and not np.asarray(gradient).any()
  np.testing.assert_allclose(
    loss(centres=zeros, kind='edu'), (9 / 2 + 4 / 2) / 2, rtol=1e-6
  )
