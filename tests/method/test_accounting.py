"""Guarantees against golden values, closed forms and laws of composition.

Bounds keep their side when they are printed.
"""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from fedreid_jax import errors
from fedreid_jax.method import accounting
from fedreid_jax.method.accounting import Mechanism

pytest.importorskip('dp_accounting', reason='pip install .[privacy]')


def gaussian_epsilon(noise, steps, delta):
  """Balle and Wang (2018), theorem 8: the exact epsilon without sampling."""
  scale = noise / math.sqrt(steps)

  def excess(epsilon):
    first = stats.norm.logcdf(0.5 / scale - epsilon * scale)
    second = epsilon + stats.norm.logcdf(-0.5 / scale - epsilon * scale)
    return math.exp(first) - math.exp(second) - delta

  return optimize.brentq(excess, 0.0, 200.0)


def renyi_epsilon(mechanism, delta):
  """A looser bound, from Renyi divergences of integer orders.

  Mironov, Talwar and Zhang (2019), section 3.3, for Poisson sampling; Canonne,
  Kamath and Steinke (2020), proposition 12, for the conversion.
  """
  noise, rate, steps = mechanism[:3]
  found = []
  for order in range(2, 513):
    k = np.arange(order + 1)
    chosen = -special.betaln(k + 1, order - k + 1) - math.log(order + 1)
    weights = special.xlogy(k, rate) + special.xlog1py(order - k, -rate)
    moments = (k**2 - k) / (2 * noise**2)
    moment = special.logsumexp(chosen + weights + moments)
    found.append(
      steps * moment / (order - 1)
      + math.log1p(-1 / order)
      - math.log(delta * order) / (order - 1)
    )
  return min(found)


def wang_epsilon(noise, number, places, steps, delta):
  """Wang, Balle and Kasiviswanathan (2019), theorem 9: samples of a fixed size.

  The Renyi divergences are those of neighbours at twice the clip.
  """
  found = []
  for order in range(2, 257):
    k = np.arange(2, order + 1)
    chosen = -special.betaln(k + 1, order - k + 1) - math.log(order + 1)
    moments = 2 * k * (k - 1) / noise**2
    terms = chosen + k * math.log(places / number) + moments + math.log(2)
    second = 4 / noise**2
    terms[0] = chosen[0] + 2 * math.log(places / number)
    terms[0] += min(math.log(4 * math.expm1(second)), second + math.log(2))
    moment = special.logsumexp([*terms, 0.0])
    found.append(
      steps * moment / (order - 1)
      + math.log1p(-1 / order)
      - math.log(delta * order) / (order - 1)
    )
  return min(found)


def of_a_fixed_size(noise, number, places, steps):
  rate = places / number
  return Mechanism(noise, rate, steps, number, places, fixed=True)


@pytest.mark.parametrize('given', [(2.0, 1000, 20, 50), (1.0, 1000, 50, 10)])
def test_samples_of_a_fixed_size_have_the_published_bound(given):
  found = accounting.epsilon([of_a_fixed_size(*given)], 1e-5)
  assert found == pytest.approx(wang_epsilon(*given, 1e-5), rel=1e-6)


def test_samples_of_a_fixed_size_cost_more():
  few = of_a_fixed_size(4.0, 100, 10, 20)
  found = accounting.epsilon([few], 1e-5)
  assert found == pytest.approx(2.242, abs=1e-3)
  assert found < wang_epsilon(4.0, 100, 10, 20, 1e-5)
  independent = accounting.epsilon([Mechanism(4.0, 0.1, 20)], 1e-5)
  assert independent == pytest.approx(0.4291, abs=1e-3)
  # Half of all units in every step would cost more than all of them.
  for places in (50, 90, 100):
    half = accounting.epsilon([of_a_fixed_size(4.0, 100, places, 20)], 1e-5)
    assert half == pytest.approx(gaussian_epsilon(4.0, 20, 1e-5), rel=1e-3)
  more = few._replace(noise=5.0), few._replace(steps=10)
  rarer = few._replace(places=5)
  for other in (*more, rarer):
    assert accounting.epsilon([other], 1e-5) < found


@pytest.mark.slow
@pytest.mark.parametrize(
  'places, target, wanted', [(10, 2.24, 4.0028), (50, 8.0, 2.6844)]
)
def test_a_multiplier_of_samples_of_a_fixed_size_reaches_its_target(
  places, target, wanted
):
  found = accounting.multiplier(
    lambda z: [of_a_fixed_size(z, 100, places, 20)], target, 1e-5
  )
  assert found == pytest.approx(wanted, abs=1e-3)
  for noise, reached in ((found, True), (found - 2e-4, False)):
    mechanism = of_a_fixed_size(noise, 100, places, 20)
    assert (accounting.epsilon([mechanism], 1e-5) <= target) == reached


@pytest.mark.parametrize('noise, steps', [(1.0, 1), (4.0, 20), (0.7, 3)])
def test_without_sampling_epsilon_is_exact(noise, steps):
  found = accounting.epsilon([Mechanism(noise, 1.0, steps)], 1e-5)
  assert found == pytest.approx(gaussian_epsilon(noise, steps, 1e-5), rel=1e-3)


@pytest.mark.parametrize(
  'noise, rate, steps, wanted, looser',
  [
    (1.0, 0.1, 100, 7.0466, 7.9039),
    (1.1, 256 / 60000, 14063, 2.3818, 2.5967),
    (4.0, 1.0, 20, 4.9833, 5.3777),
  ],
)
def test_epsilon_has_golden_values(noise, rate, steps, wanted, looser):
  """Also those of Renyi accounting, which uses fractional orders as well."""
  mechanism = Mechanism(noise, rate, steps)
  found = accounting.epsilon([mechanism], 1e-5)
  assert found == pytest.approx(wanted, abs=1e-3)
  assert renyi_epsilon(mechanism, 1e-5) == pytest.approx(looser, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
  'mechanisms, wanted',
  [
    ([Mechanism(4.0, 0.1, 20)], 0.4291),  # 10 of 100 clients, 20 rounds
    ([Mechanism(1.0, 1 / 6, 200)], 17.52),  # a person in one client,
    ([Mechanism(1.0, 1 / 6, 200)] * 2, 26.50),  # and in two
  ],
)
def test_epsilon_of_typical_runs(mechanisms, wanted):
  found = accounting.epsilon(mechanisms, 1e-5)
  assert found == pytest.approx(wanted, rel=3e-4)


@pytest.mark.slow
def test_epsilon_on_a_grid_of_noise_rates_and_steps():
  """Below the bound of Renyi divergences, and near it where it is large."""
  grid = np.array(
    [
      [[(noise, rate, steps) for steps in (1, 40)] for rate in (0.1, 0.5, 1.0)]
      for noise in (2.0, 8.0)
    ]
  )

  def every(bound):
    found = [
      bound(Mechanism(noise, rate, int(steps)))
      for noise, rate, steps in grid.reshape(-1, 3)
    ]
    return np.reshape(found, grid.shape[:3])

  found = every(lambda one: accounting.epsilon([one], 1e-5))
  looser = every(lambda one: renyi_epsilon(one, 1e-5))
  assert (np.diff(found, axis=0) < 0).all()  # more noise
  assert (np.diff(found, axis=1) > 0).all()  # a larger rate
  assert (np.diff(found, axis=2) > 0).all()  # more steps
  assert (found <= looser).all() and (found > 0).all()
  tight = looser[looser > 1] / found[looser > 1]
  assert tight.size > 5 and np.median(tight) < 1.2


@pytest.mark.slow
def test_fewer_places_are_not_more_private():
  free = Mechanism(2.0, 1 / 6, 200)
  limited = [free._replace(population=48, places=n) for n in (24, 16, 12)]
  found = [accounting.epsilon([one], 1e-5) for one in (free, *limited)]
  assert (np.diff(found) > 0).all()
  assert found[0] == pytest.approx(5.980, abs=1e-3)
  assert found[2] == pytest.approx(6.134, abs=1e-3)


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


def reaches(mechanism, target, wanted, delta=1e-5):
  def make(noise):
    return [mechanism._replace(noise=noise)]

  noise = accounting.multiplier(make, target, delta)
  assert noise == pytest.approx(wanted, rel=5e-4)
  assert accounting.epsilon(make(noise), delta) <= target
  assert accounting.epsilon(make(noise - 2e-3), delta) > target


@pytest.mark.slow
def test_a_multiplier_reaches_its_target():
  reaches(Mechanism(0.0, 1.0, 20), gaussian_epsilon(4.0, 20, 1e-5), 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
  'rate, steps, delta, target, wanted',
  [
    (1 / 6, 200, 1e-5, 3.0, 3.4382),
    (1 / 6, 200, 1e-5, 1.0, 8.9188),
    (0.1, 400, 1e-3, 8.0, 1.1765),
  ],
)
def test_with_sampling_a_multiplier_reaches_its_target(
  rate, steps, delta, target, wanted
):
  reaches(Mechanism(0.0, rate, steps), target, wanted, delta)


def test_an_unreachable_target_is_an_error():
  with pytest.raises(errors.ConfigError, match='epsilon 0.001 needs'):
    accounting.multiplier(lambda z: [Mechanism(z, 1.0, 10**9)], 1e-3, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
  'mechanism, target',
  [
    (Mechanism(1.0, 1 / 6, 200, 48, 16), 8.0),
    (Mechanism(1.0, 1.0, 20), 1.0),
    (Mechanism(1.0, 0.004, 2000), 2.0),  # losses far below the coarse grid
  ],
)
def test_the_coarse_grid_finds_the_noise_of_the_fine_one(mechanism, target):
  def make(z):
    return [mechanism._replace(noise=z)]

  found = accounting.multiplier(make, target, 1e-5)
  reached = accounting.epsilon(make(found), 1e-5)
  assert target * (1 - accounting.CLOSE) <= reached <= target
  assert accounting.epsilon(make(found * (1 - 2e-3)), 1e-5) > target


def test_discrete_noise_has_at_least_the_epsilon_of_a_gaussian():
  """Renyi accounting of the same divergence is an upper bound."""
  one = Mechanism(4.0, 1.0, 20)
  discrete = accounting.epsilon([one._replace(discrete=True)], 1e-5)
  assert discrete == pytest.approx(5.3777, abs=1e-3)
  assert discrete > accounting.epsilon([one], 1e-5)


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
  assert accounting.above(number) == above
  assert accounting.below(number) == below


def test_bounds_keep_their_side_and_are_near():
  rng = np.random.default_rng(0)
  numbers = 10 ** rng.uniform(-9, 6, 300)
  for number in [*numbers, *np.round(numbers, 3)[numbers > 1]]:
    above, below = (
      float(accounting.above(number)),
      float(accounting.below(number)),
    )
    assert below <= number <= above
    assert above - below <= 1.001e-3 * number
    assert float(accounting.exact(number)) == number


def test_all_digits_of_noise_and_delta():
  # The format `g` would give 313.123, which is less noise.
  assert accounting.exact(313.1234) == '313.1234'
  assert accounting.exact(1.00000049e-5) == '1.00000049e-05'
  assert [accounting.exact(x) for x in (2, 2.0, 0.0)] == ['2', '2', '0']
