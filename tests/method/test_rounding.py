"""Bounds keep their side when they are printed."""

import math

import numpy as np
import pytest

from fedreid_jax.method import rounding


@pytest.mark.parametrize(
  'number, above, below',
  [
    (8.2360001, '8.237', '8.236'),
    (8.2369999, '8.237', '8.236'),
    (8.236, '8.236', '8.236'),
    (8.0, '8', '8'),
    (7.99996, '8', '7.999'),
    (8.00001, '8.001', '8'),
    (0.0, '0', '0'),
    (0.1, '0.1', '0.1'),
    (1.00005e-5, '1.001e-05', '1e-05'),
    (26.49653, '26.5', '26.49'),
    (99999.0, '100000', '99990'),
    (math.inf, 'inf', 'inf'),
  ],
)
def test_worked_numbers(number, above, below):
  assert rounding.up(number) == above
  assert rounding.down(number) == below


def test_bounds_keep_their_side_and_are_near():
  rng = np.random.default_rng(0)
  numbers = 10 ** rng.uniform(-9, 6, 300)
  for number in [*numbers, *np.round(numbers, 3)[numbers > 1]]:
    above, below = float(rounding.up(number)), float(rounding.down(number))
    assert below <= number <= above
    assert above - below <= 1.001e-3 * number
    assert float(rounding.exact(number)) == number


def test_all_digits_of_noise_and_delta():
  # The format `g` would give 313.123, which is less noise.
  assert rounding.exact(313.1234) == '313.1234'
  assert rounding.exact(1.00000049e-5) == '1.00000049e-05'
  assert [rounding.exact(x) for x in (2, 2.0, 0.0)] == ['2', '2', '0']
