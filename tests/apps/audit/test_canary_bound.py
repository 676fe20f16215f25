import numpy as np
import pytest

from fedreid_jax.apps.audit.canary import canary_bound


@pytest.mark.parametrize(
  'canaries, guesses, right, delta, epsilon',
  [
    (1000, 1000, 1000, 0.0, 5.809),
    (1000, 100, 100, 1e-5, 3.465),
    (1000, 100, 90, 1e-5, 1.626),
    (200, 40, 36, 1e-3, 1.048),
  ],
)
def test_golden_bounds(canaries, guesses, right, delta, epsilon):
  found = canary_bound.lower_bound(delta, canaries, guesses, right)
  assert found == pytest.approx(epsilon, abs=1e-3)


def test_the_bound_grows_with_right_guesses_and_falls_with_delta():
  bounds = [canary_bound.lower_bound(1e-4, 400, 60, v) for v in (30, 45, 60)]
  assert bounds == sorted(bounds) and bounds[0] == 0 < bounds[1] < bounds[2]
  assert canary_bound.lower_bound(1e-3, 400, 60, 60) < bounds[2]
  for epsilon in (0.5, 2.0):
    p = canary_bound.p_value(epsilon, 0.0, 400, 60, 60)
    assert p == pytest.approx((1 / (1 + np.exp(-epsilon))) ** 60)


def gaussian(noise, seed, canaries=1000):
  """Scores of canaries in one sum with Gaussian noise."""
  rng = np.random.default_rng(seed)
  included = rng.random(canaries) < 0.5
  return included + noise * rng.standard_normal(canaries), included


def bounds(noise, runs=20):
  return [
    canary_bound.guess(*gaussian(noise, k), 100, 1e-5).epsilon
    for k in range(runs)
  ]


@pytest.mark.parametrize(
  'epsilon, noise, usual', [(1.0, 3.730632, 0.2), (4.0, 1.081162, 1.6)]
)
def test_the_gaussian_mechanism_keeps_its_claim(epsilon, noise, usual):
  found = bounds(noise)
  assert np.mean(found) == pytest.approx(usual, abs=0.25)
  assert max(found) <= epsilon


def test_noise_that_is_too_small_is_caught():
  """An eighth of the noise under a claim of epsilon 1."""
  assert min(bounds(3.730632 / 8)) > 1.5


def test_the_noise_of_the_claims():
  dp = pytest.importorskip('dp_accounting', reason='pip install .[privacy]')
  for epsilon, noise in ((1.0, 3.730632), (4.0, 1.081162)):
    assert dp.get_sigma_gaussian(epsilon, 1e-5) == pytest.approx(noise, 1e-4)


def test_without_noise_every_guess_is_right_and_permuted_ones_are_chance():
  scores, included = gaussian(0.0, 0)
  found = canary_bound.guess(scores, included, 100, 1e-5)
  assert (found.right, found.guesses, found.canaries) == (100, 100, 1000)
  assert found.epsilon == pytest.approx(3.465, abs=1e-3)
  assert canary_bound.of_permuted(scores, included, 100, 1e-5, 0) == 0
