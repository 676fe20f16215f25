"""Guarantees against golden values, closed forms and laws of composition."""

import math

import pytest
from scipy import optimize, stats

from fedreid_jax import errors
from fedreid_jax.core import accounting
from fedreid_jax.core.accounting import Mechanism

pytest.importorskip('dp_accounting', reason='pip install .[privacy]')


def gaussian_epsilon(noise, steps, delta):
  """Balle and Wang (2018), theorem 8: the exact epsilon without sampling."""
  scale = noise / math.sqrt(steps)

  def excess(epsilon):
    first = stats.norm.logcdf(0.5 / scale - epsilon * scale)
    second = epsilon + stats.norm.logcdf(-0.5 / scale - epsilon * scale)
    return math.exp(first) - math.exp(second) - delta

  return optimize.brentq(excess, 0.0, 200.0)


@pytest.mark.parametrize('noise, steps', [(1.0, 1), (4.0, 20), (0.7, 3)])
def test_without_sampling_epsilon_is_exact(noise, steps):
  found = accounting.epsilon([Mechanism(noise, 1.0, steps)], 1e-5)
  assert found == pytest.approx(gaussian_epsilon(noise, steps, 1e-5), rel=1e-3)


@pytest.mark.parametrize(
  'noise, rate, steps, wanted',
  [
    (1.0, 0.1, 100, 7.0466),
    (1.1, 256 / 60000, 14063, 2.3818),
  ],
)
def test_with_sampling_epsilon_has_golden_values(noise, rate, steps, wanted):
  found = accounting.epsilon([Mechanism(noise, rate, steps)], 1e-5)
  assert found == pytest.approx(wanted, abs=1e-3)


def test_more_noise_fewer_steps_and_rarer_sampling_are_more_private():
  base = Mechanism(2.0, 0.2, 50)
  changed = [
    base._replace(noise=2.5),
    base._replace(steps=40),
    base._replace(rate=0.15),
  ]
  before, *after = (accounting.epsilon([one], 1e-5) for one in (base, *changed))
  assert all(0 < found < 0.95 * before for found in after)
  assert accounting.epsilon([base], 1e-7) > 1.1 * before


def test_mechanisms_compose():
  """Twice 25 steps are 50 steps; another one costs more."""
  half, whole = Mechanism(2.0, 0.2, 25), Mechanism(2.0, 0.2, 50)
  twice = accounting.epsilon([half, half], 1e-5)
  alone = accounting.epsilon([whole], 1e-5)
  assert twice == pytest.approx(alone, rel=1e-3)
  more = accounting.epsilon([whole, Mechanism(8.0, 1.0, 3)], 1e-5)
  assert more > 1.02 * alone


def test_no_noise_is_no_guarantee():
  mechanisms = [Mechanism(2.0, 0.2, 50), Mechanism(0.0, 1.0, 1)]
  assert accounting.epsilon(mechanisms, 1e-5) == math.inf


def reaches(mechanism, target, wanted):
  def make(noise):
    return [mechanism._replace(noise=noise)]

  noise = accounting.multiplier(make, target, 1e-5)
  assert noise == pytest.approx(wanted, rel=5e-4)
  assert accounting.epsilon(make(noise), 1e-5) <= target
  assert accounting.epsilon(make(noise - 2e-3), 1e-5) > target


def test_a_multiplier_reaches_its_target():
  reaches(Mechanism(0.0, 1.0, 20), gaussian_epsilon(4.0, 20, 1e-5), 4.0)


@pytest.mark.slow
@pytest.mark.parametrize('target, wanted', [(8.0, 1.6257), (1.0, 8.9188)])
def test_with_sampling_a_multiplier_reaches_its_target(target, wanted):
  reaches(Mechanism(0.0, 1 / 6, 200), target, wanted)


def test_an_unreachable_target_is_an_error():
  with pytest.raises(errors.ConfigError, match='epsilon 0.001 needs'):
    accounting.multiplier(lambda z: [Mechanism(z, 1.0, 10**9)], 1e-3, 1e-9)
