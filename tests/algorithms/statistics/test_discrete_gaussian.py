"""Samples are exactly those of the discrete Gaussian."""

import numpy as np
import pytest
from scipy import stats

from fedreid_jax.algorithms.statistics import discrete_gaussian
from fedreid_jax.algorithms.statistics.discrete_gaussian import Bits


def drawn(sigma, count=20000, key=b'key'):
  return discrete_gaussian.sample(Bits(key), count, sigma)


def masses(sigma, values):
  """The definition, summed over all integers that matter."""
  every = np.arange(-40 * sigma - 40, 40 * sigma + 41)
  total = np.exp(-(every**2) / (2.0 * sigma**2)).sum()
  return np.exp(-(values**2) / (2.0 * sigma**2)) / total


@pytest.mark.parametrize('sigma', [1, 2, 5])
def test_frequencies_are_the_masses(sigma):
  found = drawn(sigma)
  inner = np.arange(-3 * sigma, 3 * sigma + 1)
  seen = np.array([(found == x).sum() for x in inner])
  expected = masses(sigma, inner)
  seen = np.append(seen, len(found) - seen.sum())
  expected = np.append(expected, 1 - expected.sum()) * len(found)
  assert stats.chisquare(seen, expected).pvalue > 1e-3
  # A rounded normal of the same variance is another distribution at sigma 1.
  normal = np.diff(stats.norm.cdf(np.arange(-3, 5) - 0.5))
  if sigma == 1:
    other = np.append(normal, 1 - normal.sum()) * len(found)
    assert stats.chisquare(seen, other).pvalue < 1e-6


@pytest.mark.parametrize('sigma', [1, 3, 1000, 2**27, 2**40])
def test_moments_are_those_of_the_distribution(sigma):
  found = drawn(sigma).astype(float) / sigma
  variance = 1.0
  if sigma < 10:
    values = np.arange(-40 * sigma, 40 * sigma + 1)
    variance = (masses(sigma, values) * values**2).sum() / sigma**2
  error = 4 / np.sqrt(len(found))
  assert abs(found.mean()) < error
  assert abs(found.var() - variance) < error * np.sqrt(2)
  assert abs((found**4).mean() - 3 * variance**2) < error * np.sqrt(96)


def test_a_wide_one_is_near_the_normal_distribution():
  found = drawn(10**6) / 1e6
  assert stats.kstest(found, 'norm').pvalue > 1e-3


def test_a_key_gives_one_stream():
  np.testing.assert_array_equal(drawn(7), drawn(7))
  assert (drawn(7) != drawn(7, key=b'other')).any()
  whole, parts = Bits(b'k'), Bits(b'k')
  pieces = [parts.words(n) for n in (3, 200_000, 1)]
  np.testing.assert_array_equal(whole.words(200_004), np.concatenate(pieces))
  assert not drawn(0).any()


class Fixed(Bits):
  """Bits that are given."""

  def __init__(self, *words):
    super().__init__(b'')
    self._given = [*words]

  def words(self, count):
    return np.array([self._given.pop(0) for _ in range(count)], np.uint64)


@pytest.mark.parametrize(
  'words, found',
  [
    ((2**62 - 1,), True),  # 1/4 of 2^64 is 2^62
    ((2**62, 5), False),
    ((2**62 + 1,), False),
  ],
)
def test_a_trial_compares_exactly(words, found):
  over, under = np.array([1], object), np.array([4], object)
  assert discrete_gaussian._trials(Fixed(*words), over, under) == [found]


def test_equal_bits_are_decided_by_more_bits():
  """2^64 / 3 is no integer: its first word and then the remainder, 1/3."""
  first = 2**64 // 3
  for second, found in ((first - 1, True), (first + 1, False)):
    over, under = np.array([1], object), np.array([3], object)
    given = Fixed(first, second)
    assert discrete_gaussian._trials(given, over, under) == [found]
