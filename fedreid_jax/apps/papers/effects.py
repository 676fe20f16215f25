"""Paired effects with intervals, verdicts about claims, and Holm's correction.

An effect is the mean of differences of average precision, in mAP: query by
query between two runs with the same seed and targets, then over the queries of
a target, the targets, and the seeds.

Its interval is Student's. With the differences y[s, t] of S seeds and T
targets, the variance of their mean is taken as

  var_t(mean_s y[s, t]) / T  +  var_s(mean_t y[s, t]) / S,

whose degrees of freedom are those of Welch and Satterthwaite. The variance of
two crossed random effects subtracts the part that both terms contain (Cameron,
Gelbach and Miller, 2011); here it stays, and the interval is not narrower for
it. Targets of a route share their training domains. Where the routes differ by
more than their targets explain (F above its 75 % quantile, the preliminary test
of Bancroft, 1964), the routes take the place of the targets. The variance of a
single target is the variance of the mean of its queries.

A bootstrap over so few seeds and targets covers 85 to 91 % where targets
differ; this interval covers 94 to 98 % (the slow test has the simulation).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy import optimize, stats

Verdict = Literal['supported', 'not supported', 'not resolved', 'no runs yet']
Claimed = Literal['greater', 'equal']
ALPHA = 0.05  # 1 - coverage of the interval
POWER = 0.8  # fraction of repetitions that find an effect of size `detectable`
POOLED = 0.75  # quantile of F up to which routes are taken to be alike


class Effect(NamedTuple):
  """A difference in mAP, with the ends of its interval."""

  mean: float
  low: float
  high: float
  detectable: float  # smallest effect that 80 % of repetitions find
  seeds: int
  targets: int  # one in several routes counts for each of them
  error: float  # standard error of the mean
  freedom: float  # degrees of freedom of the error

  def texts(self) -> tuple[str, str]:
    """Returns the mean with its interval, and the smallest effect found."""
    interval = f'[{self.low:+.1f}, {self.high:+.1f}]'
    return f'{self.mean:+.1f} {interval}', f'{self.detectable:.1f}'


def effect(
  differences: Sequence[Mapping[str, np.ndarray]],
  minus: Collection[str] = (),
  routes: Mapping[str, str] | None = None,
) -> Effect:
  """Returns the mean effect and its interval.

  Args:
    differences: for every seed, differences of average precision in [-1, 1] by
      target, `[Q]`; every seed has the same targets and queries. A query
      without a match is NaN.
    minus: targets whose mean effect is subtracted from the mean of the others.
    routes: route of each target, if runs of several routes are compared.

  Raises:
    ValueError: for no seed, or seeds with different targets.
  """
  if not differences or not differences[0]:
    raise ValueError('no differences')
  names = sorted(differences[0])
  if any(sorted(own) != names for own in differences):
    raise ValueError('the seeds have different targets')
  by_seed = np.zeros(len(differences))
  parts: list[tuple[float, float]] = []  # variances of the mean, with freedoms
  for sign, side in (
    (1.0, [name for name in names if name not in minus]),
    (-1.0, [name for name in names if name in minus]),
  ):
    if side:
      values, cells = _cells(differences, side)
      by_seed += sign * cells.mean(axis=1)
      if len(side) > 1:
        of = [(routes or {}).get(name, '') for name in side]
        parts.append(_of_targets(cells.mean(axis=0), of))
      else:
        parts.append(_of_mean(values[0].mean(axis=0)))
  return _student(by_seed, parts, len(names))


def of_seeds(differences: Sequence[float]) -> Effect:
  """Returns the mean of one difference for every seed, and its interval.

  A single seed has the interval of width 0.

  Raises:
    ValueError: for no seed.
  """
  if not differences:
    raise ValueError('no differences')
  return _student(np.asarray(differences), [], 1)


def _student(
  by_seed: np.ndarray, parts: Sequence[tuple[float, float]], targets: int
) -> Effect:
  """Returns the effect of differences by seed.

  Args:
    by_seed: difference of every seed.
    parts: further variances of the mean, with their degrees of freedom.
    targets: number of targets.
  """
  parts = [*parts, _of_mean(by_seed)]
  variance = sum(v for v, _ in parts)
  freedom = variance**2 / (sum(v**2 / n for v, n in parts if n) or np.inf)
  # Without any spread every number of degrees of freedom gives the same.
  freedom = freedom or np.inf
  mean, error = float(by_seed.mean()), float(variance**0.5)
  half = float(stats.t.ppf(1 - ALPHA / 2, freedom)) * error
  return Effect(
    mean=mean,
    low=mean - half,
    high=mean + half,
    detectable=half + float(stats.t.ppf(POWER, freedom)) * error,
    seeds=len(by_seed),
    targets=targets,
    error=error,
    freedom=float(freedom),
  )


def _cells(
  differences: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]
) -> tuple[list[np.ndarray], np.ndarray]:
  """Returns differences in mAP, `[S, Q]` by target, and the means `[S, T]`."""
  values = [100.0 * np.stack([own[n] for own in differences]) for n in names]
  # A query counts if it has a match for all seeds.
  values = [x[:, ~np.isnan(x).any(axis=0)] for x in values]
  return values, np.stack([x.mean(axis=1) for x in values], axis=1)


def _of_mean(values: np.ndarray) -> tuple[float, int]:
  """Returns the variance of a mean and its freedom, zero for one value."""
  if len(values) < 2:
    return 0.0, 0
  return float(values.var(ddof=1)) / len(values), len(values) - 1


def _of_targets(means: np.ndarray, routes: Sequence[str]) -> tuple[float, int]:
  """Returns the variance of the mean over targets, or over their routes."""
  names = sorted(set(routes))
  rows = [means[[r == name for r in routes]] for name in names]
  size = len(rows[0])
  # Routes of different sizes are not weighted alike in the mean over targets.
  if len(names) > 1 and size > 1 and all(len(row) == size for row in rows):
    between = size * np.var([row.mean() for row in rows], ddof=1)
    within = np.mean([row.var(ddof=1) for row in rows])
    free = len(names) - 1, len(means) - len(names)
    if between > within * stats.f.ppf(POOLED, *free):
      return _of_mean(np.array([row.mean() for row in rows]))
  return _of_mean(means)


class OfTarget(NamedTuple):
  """The effect on one target, in mAP."""

  raw: float  # mean over its queries and the seeds
  mean: float  # drawn to the mean of all targets, see `by_target`
  low: float
  high: float

  def text(self) -> str:
    """Returns the mean with its interval."""
    return f'{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]'


def by_target(
  differences: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, OfTarget]:
  """Returns the effect on each of several targets, in a hierarchical model.

  The effects t of the targets have a normal distribution of mean m and variance
  v, and y[t], measured with the variance e[t], is normal around them. e is the
  variance of the mean over queries plus that of the mean over seeds, which is
  pooled over the targets. v is the estimate of Paule and Mandel (1982). The
  posterior mean is m + b (y[t] - m) with b = v / (v + e[t]); its interval has
  the uncertainty of m (Morris, 1983, without his factor for v). Targets whose
  measurements are uncertain, like small clients, are drawn to the others most.

  Args:
    differences: as for `effect`.

  Raises:
    ValueError: for fewer than two targets.
  """
  names, seeds = sorted(differences[0]), len(differences)
  if len(names) < 2:
    raise ValueError('one target has no distribution of targets')
  values, cells = _cells(differences, names)
  y = cells.mean(axis=0)
  e = np.array([_of_mean(x.mean(axis=0))[0] for x in values])
  if seeds > 1:
    e = e + cells.var(axis=0, ddof=1).mean() / seeds
  v = _between(y, e)
  weights = 1 / np.maximum(v + e, 1e-12)
  m = float(np.average(y, weights=weights))
  b = v / np.maximum(v + e, 1e-12)
  own, common = b * e, (1 - b) ** 2 / weights.sum()
  free = (own + common) ** 2 / np.maximum(
    own**2 / max(len(names) * (seeds - 1), 1) + common**2 / (len(names) - 1),
    1e-300,
  )
  means = m + b * (y - m)
  half = stats.t.ppf(1 - ALPHA / 2, free) * (own + common) ** 0.5
  return {
    name: OfTarget(*map(float, row))
    for name, *row in zip(
      names, y, means, means - half, means + half, strict=True
    )
  }


def _between(y: np.ndarray, e: np.ndarray) -> float:
  """Returns v for which the weighted squares equal their expectation."""

  def excess(v: float) -> float:
    weights = 1 / np.maximum(v + e, 1e-12)
    mean = np.average(y, weights=weights)
    return float((weights * (y - mean) ** 2).sum() - (len(y) - 1))

  if excess(0.0) <= 0:
    return 0.0
  most = len(y) * float(np.var(y, ddof=1)) + 1.0
  return float(optimize.root_scalar(excess, bracket=(0.0, most)).root)


def p_values(
  found: Effect, claimed: Claimed, margin: float
) -> tuple[float, float]:
  """Returns p of 'supported' and of 'not supported', see `verdict`.

  Both are two-sided: a p below `ALPHA` agrees with the interval. A claim of
  nearness is supported by two one-sided tests (Schuirmann 1987).
  """

  def tail(limit: float, side: int) -> float:
    """Returns p of an effect above (1) or below (-1) a limit."""
    distance = side * (found.mean - limit)
    if not found.error:
      return float(distance <= 0)
    return min(
      1.0, 2 * float(stats.t.sf(distance / found.error, found.freedom))
    )

  if claimed == 'greater':
    return tail(0.0, 1), tail(margin, -1)
  near = max(tail(-margin, 1), tail(margin, -1))
  return near, min(tail(margin, 1), tail(-margin, -1))


def holm(values: Sequence[float]) -> list[float]:
  """Returns the p-values of a family, adjusted by Holm's method (1979)."""
  adjusted, largest = [0.0] * len(values), 0.0
  for k, index in enumerate(np.argsort(values)):
    largest = max(largest, min(1.0, (len(values) - k) * values[index]))
    adjusted[index] = largest
  return adjusted


def verdict(found: Effect | None, claimed: Claimed, margin: float) -> Verdict:
  """Judges a claim.

  'greater': supported if the interval is above zero, not supported if it is
  below `margin`, the smallest gain that would matter. 'equal': supported if
  the interval is within `margin` of zero, not supported if it is outside.

  Args:
    found: the effect; None without finished runs.
    claimed: the direction that the claim states.
    margin: difference in mAP.
  """
  if found is None:
    return 'no runs yet'
  yes, no = p_values(found, claimed, margin)
  if yes < ALPHA:
    return 'supported'
  return 'not supported' if no < ALPHA else 'not resolved'


def corrected(
  family: Sequence[tuple[Effect | None, Claimed, float]],
) -> list[Verdict]:
  """Returns the verdicts of a family of claims after Holm's correction.

  A claim enters with the smaller p of its two verdicts.

  Args:
    family: effect, direction and margin of every claim, as for `verdict`.
  """
  pairs = [
    p_values(found, claimed, margin) if found else (1.0, 1.0)
    for found, claimed, margin in family
  ]
  # Claims without runs have p = 1 and are last, but they do not count.
  tried = [k for k, (found, *_) in enumerate(family) if found]
  adjusted = dict(zip(tried, holm([min(pairs[k]) for k in tried]), strict=True))
  verdicts: list[Verdict] = []
  for k, (yes, no) in enumerate(pairs):
    if k not in adjusted:
      verdicts.append('no runs yet')
    elif adjusted[k] >= ALPHA:
      verdicts.append('not resolved')
    else:
      verdicts.append('supported' if yes <= no else 'not supported')
  return verdicts
