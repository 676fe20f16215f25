import math

import numpy as np
import pytest

from fedreid_jax.apps.audit.inversion import inversion_control
from fedreid_jax.apps.audit.inversion.inversion_control import Asked

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


def test_the_controls_reject_as_often_as_they_say(monkeypatch):
  """Random answers about clients of different sizes, 100 times."""
  monkeypatch.setattr(inversion_control, 'PERMUTATIONS', 299)
  rng = np.random.default_rng(1)
  wanted = np.repeat([0, 1, 2], [20, 10, 5])
  found = rng.choice(3, (100, 35), p=[0.7, 0.2, 0.1])
  p = np.asarray([Asked(wanted, one).p_value() for one in found])
  assert 0.01 < (p < 0.1).mean() < 0.2 and (p < 0.01).mean() < 0.05


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
    ({'real': None}, None, 'real images of two persons cannot be asked'),
    # The same answer to every query.
    ({'real': Asked(PERSONS, 0 * PERSONS)}, None, 'real does not lead'),
    ({'real feature': WRONG}, None, 'real feature does not lead to the person'),
    # With several domains the features must lead to the domain only.
    ({'real feature': WRONG}, {'real feature': RIGHT}, ''),
    ({}, {'real feature': WRONG}, 'real feature does not lead to the domain'),
    ({}, {'permuted DFS': RIGHT}, 'permuted DFS leads to the domain'),
    ({}, {'permuted DFS': WRONG, 'DFS': RIGHT}, ''),
    ({'identity means': RIGHT}, None, ''),
    ({'identity means': WRONG}, None, ''),
    # All queries are of one domain: nothing can be asked.
    ({}, {'real': Asked(np.zeros(6, int), 1 + PERSONS)}, ''),
    # p is 1 / 24 for four right answers and 1 / 6 for three.
    ({'real': Asked(PERSONS[:4], PERSONS[:4])}, None, ''),
    ({'real': Asked(PERSONS[:3], PERSONS[:3])}, None, 'real does not lead'),
    ({'noise': Asked(PERSONS[:4], PERSONS[:4])}, None, ''),
    ({'noise': Asked(PERSONS[:5], PERSONS[:5])}, None, 'noise leads to'),
  ],
)
def test_controls(person, domain, message):
  of = {n: one for n, one in (CONTROLS | person).items() if one is not None}
  asked = {'person': of} | ({} if domain is None else {'domain': domain})
  found = inversion_control.failed(asked)
  assert (message in found[0] and len(found) == 1) if message else not found
