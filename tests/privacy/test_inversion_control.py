import math

import numpy as np
import pytest

from fedreid_jax.privacy import inversion_control
from fedreid_jax.privacy.inversion_control import Asked

PERSONS = np.arange(6)
RIGHT = Asked(PERSONS, PERSONS)
WRONG = Asked(PERSONS, np.roll(PERSONS, 1))
CONTROLS = {'real': RIGHT, 'noise': WRONG}


def test_shares_and_intervals():
  half = Asked(np.arange(4), np.asarray([0, 1, 3, 2]))
  assert half.rank1() == 50
  # Clopper-Pearson for 2 of 4.
  np.testing.assert_allclose(half.interval(), (6.76, 93.24), atol=0.01)
  assert RIGHT.interval()[1] == 100
  np.testing.assert_allclose(RIGHT.interval()[0], 100 * 0.025 ** (1 / 6))


def test_permuted_answers_have_the_p_value_of_all_orders():
  """One of 6! orders meets six different persons, one of 3! meets three."""
  assert RIGHT.p_value() == pytest.approx(1 / math.factorial(6), abs=1e-3)
  three = Asked(np.arange(3), np.arange(3))
  assert three.p_value() == pytest.approx(1 / 6, abs=0.02)
  assert WRONG.p_value() == 1


def test_one_answer_to_every_query_is_no_success():
  """A judge that names a large domain always is often right, by chance."""
  wanted = np.asarray([0] * 40 + [1] * 10)
  one = Asked(wanted, np.zeros(50, int))
  assert one.rank1() == 80 and one.p_value() == 1
  assert Asked(wanted, wanted).p_value() < 0.001


@pytest.mark.parametrize(
  'person, domain, message',
  [
    ({}, None, ''),
    ({'noise': RIGHT}, None, 'noise leads to the person'),
    ({'real': WRONG}, None, 'real does not lead to the person'),
    ({'real': None}, None, 'fewer than two persons'),
    ({'real feature': WRONG}, None, 'real feature does not lead to the person'),
    # With several domains the features must lead to the domain only.
    ({'real feature': WRONG}, {'real feature': RIGHT}, ''),
    ({}, {'real feature': WRONG}, 'real feature does not lead to the domain'),
    ({}, {'permuted DFS': RIGHT}, 'permuted DFS leads to the domain'),
    ({}, {'permuted DFS': WRONG, 'DFS': RIGHT}, ''),
    ({'identity means': RIGHT}, None, ''),
    ({'identity means': WRONG}, None, ''),
    # All queries are of one domain: nothing can be asked.
    ({}, {'real': Asked(np.zeros(6, int), np.ones(6, int))}, ''),
  ],
)
def test_controls(person, domain, message):
  of = {n: one for n, one in (CONTROLS | person).items() if one is not None}
  asked = {'person': of} | ({} if domain is None else {'domain': domain})
  found = inversion_control.failed(asked)
  assert (message in found[0] and len(found) == 1) if message else not found
