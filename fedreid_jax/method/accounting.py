"""Guarantees of differential privacy, by the package `dp-accounting`.

The unit of privacy is one person in one client, or one client. Neighbouring
data sets differ in one unit, whose contribution is replaced by zero, while
numbers of images and shapes stay the same. Noise is given as a multiplier `z`,
its standard deviation over the bound of one unit's contribution (the clip).
Epsilon is computed for noise on real numbers: attacks on the rounding of
float32 noise are not covered (docs/privacy.md).

A guarantee is computed from privacy loss distributions (PLD), which are tight
for the Gaussian mechanism with and without Poisson sampling. For samples of a
fixed size there is no such distribution, and their guarantee is computed by
Renyi accounting (RDP), which is fast and 5 to 15 % looser.

M. Abadi et al., "Deep learning with differential privacy" (CCS 2016); I.
Mironov, "Renyi differential privacy" (CSF 2017); A. Koskela et al., "Computing
tight differential privacy guarantees using FFT" (AISTATS 2020); Y.-X. Wang et
al., "Subsampled Renyi differential privacy and analytical moments accountant"
(AISTATS 2019).
"""

import decimal
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import plugins

NONE = 'no differential privacy'
WEAK = 20.0  # the epsilon above which a guarantee gives no protection
TOO_WEAK = f'epsilon above {WEAK:g} gives no meaningful protection'
DIGITS = 4  # decimal places of a multiplier, which is rounded up
RANGE = 0.2, 1e4  # multipliers among which a search looks
LOOSE = 0.6  # PLD needs at least this share of RDP's multiplier
TRUNCATED = 2.0  # largest factor by which a limit of places raises the noise
# Steps of the grid of privacy losses. Losses are rounded up, so that epsilon is
# an upper bound on every grid; a finer one is tighter and slower.
FINE, COARSE = 1e-4, 2e-3
CLOSE = 1e-3  # share of the target that a search on the coarse grid may miss
# Below 2 the series of RDP may not converge; a bound needs no best order.
_ORDERS = (*range(2, 65), 96, 128, 256, 512, 1024)
SIGNIFICANT = 4  # significant digits of a bound


class Mechanism(NamedTuple):
  """Sums with Gaussian noise, to which a unit contributes.

  Attributes:
    noise: multiplier `z`; 0 for no noise.
    rate: probability `q` with which each step samples a unit, independently of
      all others (Poisson sampling); 1 takes every unit in every step.
    steps: number of sums.
    population: number of units, if a step has a limited number of places.
    places: largest number of units in a step; a random subset of a larger
      sample takes part (truncated Poisson sampling). 0 for no limit.
    fixed: whether every step takes exactly `places` of the `population`, drawn
      without replacement.
    discrete: whether the noise is a discrete Gaussian on integers. Its privacy
      loss has no known distribution for vectors; its Renyi divergence is at
      most the divergence of Gaussian noise.
  """

  noise: float
  rate: float
  steps: int
  population: int = 0
  places: int = 0
  fixed: bool = False
  discrete: bool = False


def _none(rounds: int, /) -> Sequence[Mechanism]:
  del rounds
  return ()


class Released(NamedTuple):
  """The information in the message of a component beside the trained model.

  A message that is a function of models and public numbers alone has none: a
  guarantee for identities of the models also covers functions of them.

  Attributes:
    mechanisms: `(rounds) -> sums with noise` from which the message is
      computed, to which every identity contributes; none by default.
    details: description of these sums for users.
  """

  mechanisms: Callable[[int], Sequence[Mechanism]] = _none
  details: str = ''


def epsilon(mechanisms: Sequence[Mechanism], delta: float) -> float:
  """Returns the epsilon at which all releases together are private.

  Args:
    mechanisms: all sums to which one unit contributes, each with its noise.

  Returns:
    Infinity where a mechanism has no noise.

  Raises:
    ConfigError: if `dp-accounting` is not installed.
  """
  return _epsilon(tuple(mechanisms), delta)


@functools.lru_cache(64)
def _epsilon(mechanisms: tuple[Mechanism, ...], delta: float) -> float:
  accounting = _package()
  accountant = _accountant(accounting, mechanisms, FINE)
  accountant.compose(_composed(accounting, mechanisms))
  found = float(accountant.get_epsilon(delta))
  # Sums over everyone have a PLD, and their guarantee also holds for samples: a
  # unit that is not drawn reveals less. Here a contribution becomes zero, so
  # that the multiplier is z and not z / 2.
  if any(one.fixed for one in mechanisms):
    return min(found, epsilon(_of_everyone(mechanisms), delta))
  return found


def text(epsilon: float, delta: float) -> str:
  """Returns the text of a guarantee, which never claims too much.

  Args:
    epsilon: a finite number, which is rounded up.
    delta: a number that is printed with all its digits.
  """
  return f'epsilon = {above(epsilon)} at delta = {exact(delta)}'


def multiplier(
  make: Callable[[float], Sequence[Mechanism]], target: float, delta: float
) -> float:
  """Returns the smallest noise multiplier that reaches an epsilon.

  Args:
    make: `(z) -> mechanisms` to which one unit contributes; more noise must not
      raise their epsilon.
    target: largest epsilon, above 0.

  Returns:
    `z` with four digits after the point, so that `epsilon(make(z), delta)` is
    at most the target. It is not more than `CLOSE` times the target below it,
    unless a multiplier that is smaller by one unit of the last digit exceeds
    the target.

  Raises:
    ConfigError: if the multiplier is outside of `RANGE`, or if `dp-accounting`
      is not installed.
  """
  if any(one.fixed for one in make(RANGE[1])):
    return min(
      _search(make, target, delta),
      _search(lambda z: _of_everyone(make(z)), target, delta),
    )
  return _search(make, target, delta)


def _search(
  make: Callable[[float], Sequence[Mechanism]], target: float, delta: float
) -> float:
  accounting = _package()
  # RDP is fast and 5 to 15 % looser than PLD, so that it brackets the search.
  upper = bracket = _bracket(make, target, delta)
  # The bracket ignores a limit of places, which needs more noise.
  if any(one.places and not one.fixed for one in make(upper)):
    upper *= TRUNCATED

  def event(z: float) -> Any:
    return _composed(accounting, make(z))

  lower = LOOSE * bracket
  # RDP also overestimates mechanisms whose noise is not searched, so that the
  # multiplier may be below `LOOSE` times the multiplier of RDP.
  while len(make(lower)) > 1 and epsilon(make(lower), delta) <= target:
    lower *= LOOSE

  # A grid only affects the search, as `epsilon` confirms every result. The slow
  # fine grid searches below the coarse result if that is far from the target.
  for grid in (COARSE, FINE):
    found = accounting.calibrate_dp_mechanism(
      functools.partial(_accountant, accounting, make(upper), grid),
      event,
      target,
      delta,
      accounting.ExplicitBracketInterval(lower, upper),
      tol=10.0**-DIGITS,
    )
    upper = found = math.ceil(found * 10**DIGITS) / 10**DIGITS
    reached = epsilon(make(found), delta)
    while reached > target:  # because the search has a tolerance
      upper = found = round(found + 10.0**-DIGITS, DIGITS)
      reached = epsilon(make(found), delta)
    if reached >= (1 - CLOSE) * target:
      break
  return found


def _bracket(
  make: Callable[[float], Sequence[Mechanism]], target: float, delta: float
) -> float:
  """Returns a multiplier that reaches the target, at most 1 % above RDP's."""
  accounting = _package()

  def reaches(z: float) -> bool:
    # RDP has no accounting of truncated sampling.
    whole = [x if x.fixed else x._replace(places=0) for x in make(z)]
    accountant = _renyi(accounting, whole)
    accountant.compose(_composed(accounting, whole))
    return accountant.get_epsilon(delta) <= target

  low, high = RANGE
  if reaches(low) or not reaches(high):
    raise errors.ConfigError(
      f'epsilon {target:g} needs a noise below {low:g} or above {high:g}',
      'epsilon',
      'change epsilon, delta, the sampling rate or the number of steps',
    )
  while high > 1.01 * low:
    middle = math.sqrt(low * high)
    low, high = (low, middle) if reaches(middle) else (middle, high)
  return high


def _event(accounting: Any, mechanism: Mechanism) -> Any:
  if not mechanism.noise:
    return accounting.NonPrivateDpEvent()
  # A unit is replaced by another one: the sum loses a contribution and gains
  # one, each up to the bound, and moves by up to twice the bound.
  if mechanism.fixed:
    return accounting.SampledWithoutReplacementDpEvent(
      mechanism.population,
      mechanism.places,
      accounting.GaussianDpEvent(mechanism.noise / 2),
    )
  if mechanism.places:
    return accounting.TruncatedSubsampledGaussianDpEvent(
      mechanism.population, mechanism.rate, mechanism.places, mechanism.noise
    )
  event = accounting.GaussianDpEvent(mechanism.noise)
  if mechanism.rate == 1:
    return event
  return accounting.PoissonSampledDpEvent(mechanism.rate, event)


def _of_everyone(mechanisms: Sequence[Mechanism]) -> list[Mechanism]:
  """Returns the same sums with a contribution of every unit in every step."""
  return [Mechanism(one.noise, 1.0, one.steps) for one in mechanisms]


def _composed(accounting: Any, mechanisms: Sequence[Mechanism]) -> Any:
  return accounting.ComposedDpEvent(
    [
      accounting.SelfComposedDpEvent(_event(accounting, one), one.steps)
      for one in mechanisms
    ]
  )


def _accountant(
  accounting: Any, mechanisms: Sequence[Mechanism], grid: float
) -> Any:
  if any(one.fixed or one.discrete for one in mechanisms):
    return _renyi(accounting, mechanisms)
  return _package('.pld').PLDAccountant(
    _adjacency(accounting, mechanisms), value_discretization_interval=grid
  )


def _renyi(accounting: Any, mechanisms: Sequence[Mechanism]) -> Any:
  relation = _adjacency(accounting, mechanisms)
  return _package('.rdp').RdpAccountant(_ORDERS, relation)


def _adjacency(accounting: Any, mechanisms: Sequence[Mechanism]) -> Any:
  """Returns the relation of neighbouring data sets.

  The contribution of a unit becomes zero, or with samples of a fixed size that
  of another unit.
  """
  relations = accounting.NeighboringRelation
  if not any(one.fixed for one in mechanisms):
    return relations.REPLACE_SPECIAL
  assert all(one.fixed for one in mechanisms), 'other sums have z, not z / 2'
  return relations.REPLACE_ONE


def _package(module: str = '') -> Any:
  return plugins.load_extra(
    f'dp_accounting{module}',
    'a guarantee of privacy',
    plugins.install_command('privacy'),
  )


# An upper bound must not become smaller when it is printed, and a lower bound
# must not become larger. Noise and delta are printed with all their digits, so
# that the text, given as an option, is the same number.
def above(bound: float) -> str:
  """Returns an upper bound, rounded up to four significant digits."""
  return _rounded(bound, decimal.ROUND_CEILING)


def below(bound: float) -> str:
  """Returns a lower bound, rounded down to four significant digits."""
  return _rounded(bound, decimal.ROUND_FLOOR)


def exact(number: float) -> str:
  """Returns the shortest text from which Python reads the same number."""
  return repr(float(number)).removesuffix('.0')


def _rounded(bound: float, mode: str) -> str:
  # The binary value of 8.236 is a little above it. Its shortest text has four
  # digits, so that the number is not rounded up to 8.237.
  shortest = decimal.Decimal(repr(float(bound)))
  context = decimal.Context(prec=SIGNIFICANT, rounding=mode)
  return f'{float(context.plus(shortest)):g}'
