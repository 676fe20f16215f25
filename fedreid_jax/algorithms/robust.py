"""Robust aggregation: rules that few wrong uploads cannot move far.

With D_k = w_k - w^t of the K uploads of a round, of which f may be wrong:

  median     the median of every coordinate
  trimmed    its mean without the f largest and the f smallest values
  krum       the D_i with the least s_i, the sum of the squared distances of
             D_i to the nearest K - f - 2 others
  multikrum  the mean of the m with the least s_i, by default m = K - f - 2
  rfa        the geometric median, argmin_v sum_k p_k |v - D_k|
  bound      sum_k p_k D_k min(1, M / |D_k|); M is the median of the norms
             unless `bound` is given. It bounds an upload and rejects none.

Yin et al., Byzantine-robust distributed learning: towards optimal statistical
rates, ICML 2018, algorithm 1 (median, trimmed); Blanchard et al., Machine
learning with adversaries: Byzantine tolerant gradient descent, NeurIPS 2017
(krum, multikrum); Pillutla et al., Robust aggregation for federated learning,
2019 (rfa); Sun et al., Can you really backdoor federated learning?, 2019
(bound). p_k are the shares of images; the first four rules weight clients
equally. Distances are over all shared values, running statistics included.

An upload that is not finite is left out. Then f is lowered to the largest
number that the remaining uploads allow, and m to K - f - 2 of them.

Deviations from the papers: the rules apply to models after local training and
not to gradients. `rfa` starts at the median of every coordinate, weighted by
p_k, instead of the mean, from which one distant upload takes tens of iterations
to lose its weight; and where the median is at an upload, its step is that of
Vardi & Zhang, The multivariate L1-median and associated data depth, PNAS 2000,
equation 2.6, since Weiszfeld's would divide by zero.
Deviations from released code: that of RFA does three iterations by default and
stops by the objective; this module stops when the median moves by less than
1e-6 of its norm.

In the functions below leaves are `{name: [K, ...]}`, one row for each upload,
and `valid` says which rows are present; absent rows have no effect, even if
they are not finite. The number of wrong rows `f` may be traced.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Literal, cast

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat, Number
from fedreid_jax.method import aggregation
from fedreid_jax.method.component import (
  Component,
  Participants,
)
from fedreid_jax.method.contexts import AggregationCtx
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.method.sums import Gather

# Number of uploads in addition to 2 f that a rule needs; `bound` has no limit.
SPARE = {'median': 1, 'trimmed': 1, 'krum': 3, 'multikrum': 3, 'rfa': 1}
# Rules by coordinate: their results are no weighted means of the uploads.
COORDINATES = ('median', 'trimmed')
# Relative distance at which a row is at the geometric median, and relative
# change at which the iteration stops.
SMALLEST = 1e-6
TINY = 1e-30  # in place of a divisor that is 0
# Centre, weights, norm of the last move, and number of iterations.
_Loop = tuple[Flat, Array, Array, Array]


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of robust aggregation."""

  rule: Annotated[
    Literal['median', 'trimmed', 'krum', 'multikrum', 'rfa', 'bound'],
    'rule of the server; bound limits the norm of an update and rejects none',
  ] = 'median'
  f: Annotated[
    int, Range(0), 'number of wrong uploads in a round that the rule resists'
  ] = 1
  m: Annotated[
    int,
    Range(0),
    'multikrum: number of averaged uploads, at most K - f - 2; 0 for as many',
  ] = 0
  bound: Annotated[
    float, Range(0), 'bound: largest norm of an update, 0 for the median norm'
  ] = 0.0
  iterations: Annotated[int, Range(1), 'rfa: largest number of iterations'] = 50


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield (
    given.config.batch_stats_rule == 'first_client',
    'batch_stats_rule',
    f'{given.name!r} cannot trust the running statistics of one client',
    f"set it to 'average', which is the rule of {given.name}, or 'keep_server'",
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def check(participants: Participants) -> None:
    _check(options, participants)

  def weights(messages: tuple[()], ctx: AggregationCtx) -> Array:
    del messages
    return jnp.where(ctx.members, _weights(options, ctx)[None], 0.0)

  def combine(models: Flat, ctx: AggregationCtx) -> Flat:
    return _combine(options, models, ctx)

  by_coordinate = options.rule in COORDINATES
  return Component(
    'robust',
    aggregation=Gather(
      weights, combine if by_coordinate else None, by_coordinate
    ),
    conflicts=('clustering',),
    bind=check,
  )


def _check(options: Options, participants: Participants) -> None:
  """Refuses a number of wrong uploads that the rule does not resist."""
  rule, f = options.rule, options.f
  needed = 2 * f + SPARE.get(rule, -2 * f)
  if participants.cohort < needed:
    raise errors.ConfigError(
      f'{rule} with f={f} needs {needed} uploads in a round, but there are '
      f'{participants.cohort}',
      'robust.f',
      'lower it, raise the fraction of clients, or use more clients',
    )
  most = participants.cohort - f - 2
  if rule == 'multikrum' and options.m > most:
    raise errors.ConfigError(
      f'a mean of {options.m} of {participants.cohort} uploads has wrong ones '
      f'if {f} are wrong',
      'robust.m',
      f'give at most {most}, or 0',
    )
  sizes = sorted(client.num_images for client in participants.clients)
  # With half of the weight, the geometric median is at the wrong uploads.
  if rule == 'rfa' and f and 2 * sum(sizes[-f:]) >= sum(sizes):
    raise errors.ConfigError(
      f'the {f} largest clients have half of all images, which is their weight '
      'in the geometric median',
      'robust.f',
      'lower it, or use another rule',
    )


def _weights(options: Options, ctx: AggregationCtx) -> Array:
  """The weights of the uploads, `[K]`."""
  valid, rule = ctx.members[0], options.rule
  if rule in COORDINATES:
    return aggregation.uniform(ctx.members)[0]
  # All shared values together, so that an upload has one weight.
  changes = {n: x - ctx.start[n] for n, x in ctx.uploaded.items()}
  count = valid.sum()
  f = tolerated(count, options.f, SPARE.get(rule, 1))
  shares = aggregation.normalise(ctx.num_examples, ctx.members)[0]
  if rule == 'rfa':
    return geometric_median_weights(changes, valid, shares, options.iterations)
  if rule == 'bound':
    return bounded_weights(changes, valid, shares, options.bound)
  chosen = jnp.int32(1)
  if rule == 'multikrum':
    # With more, an upload that is far from all others would have a weight.
    most = jnp.maximum(count - f - 2, 1)
    chosen = jnp.minimum(options.m, most) if options.m else most
  return krum_weights(changes, valid, f, chosen)


def _combine(options: Options, models: Flat, ctx: AggregationCtx) -> Flat:
  """The model by coordinate; without uploads it stays, `[1, ...]`."""
  valid = ctx.members[0]
  if options.rule == 'median':
    found = median(ctx.uploaded, valid)
  else:
    f = tolerated(valid.sum(), options.f, SPARE[options.rule])
    found = trimmed_mean(ctx.uploaded, valid, f)
  return {
    name: jnp.where(valid.any(), found[name].astype(old.dtype)[None], old)
    for name, old in models.items()
  }


def tolerated(count: Array, f: Number, spare: int) -> Array:
  """The number of wrong rows that `count` rows allow, at most `f`.

  `spare` is the number of rows that the rule needs beside `2 f`.
  """
  return jnp.clip((count - spare) // 2, 0, f)


def present(leaves: Flat, valid: Array) -> Flat:
  """Replaces absent rows, which may not be finite, by zeros."""
  # Not a product with the mask: 0 * nan is nan.
  return {n: jnp.where(wide(valid, x), x, 0.0) for n, x in leaves.items()}


def median(leaves: Flat, valid: Array) -> Flat:
  """The median of every coordinate, infinite without valid rows."""
  count = valid.sum()

  def one(values: Array) -> Array:
    # The mean of the two in the middle if their number is even.
    ordered = _ordered(values, valid)
    low = ordered[jnp.maximum(count - 1, 0) // 2]
    high = ordered[jnp.minimum(count // 2, len(valid) - 1)]
    # Halves are added, because the sum of two large values may overflow.
    return jnp.where(low == high, low, 0.5 * low + 0.5 * high)

  return {name: one(values) for name, values in leaves.items()}


def trimmed_mean(leaves: Flat, valid: Array, f: Number) -> Flat:
  """The mean of every coordinate without `f` values at either end.

  `2 f` is below the number of valid rows.
  """
  place = jnp.arange(len(valid))
  count = valid.sum()
  # Absent rows are sorted to the end, behind `count` places.
  kept = (place >= f) & (place < count - f)
  number = jnp.maximum(kept.sum(), 1)

  def one(values: Array) -> Array:
    ordered = _ordered(values, valid)
    return jnp.where(wide(kept, ordered), ordered, 0.0).sum(axis=0) / number

  return {name: one(values) for name, values in leaves.items()}


def distances(leaves: Flat, centre: Flat) -> Array:
  """The Euclidean distance of each row to a centre, `[K]`."""
  squared = [
    _squares(values - centre[name][None]) for name, values in leaves.items()
  ]
  return jnp.sqrt(sum(squared[1:], squared[0]))


def krum_scores(leaves: Flat, valid: Array, f: Number) -> Array:
  """Returns Krum's score of each row, infinite for absent ones, `[K]`.

  The score is the sum of the squared distances to the nearest K - f - 2 other
  rows, or to one other row if this number is smaller than 1.
  """
  rows, num = present(leaves, valid), len(valid)

  def apart(row: Flat) -> Array:
    return distances(rows, row) ** 2

  # One row at a time, since all differences are K times the uploads.
  squared = cast(Array, jax.lax.map(apart, rows))
  both = valid[:, None] & valid[None]
  squared = jnp.where(both, squared, jnp.inf)
  # Exactly zero, so that each row is the first of its own sorted distances.
  squared = jnp.where(jnp.eye(num, dtype=bool), 0.0, squared)
  count = valid.sum()
  # At least one other row: a sum over no distance is 0 and would always win.
  nearest = jnp.clip(count - f - 2, 1, jnp.maximum(count - 1, 0))
  # The first of a sorted row is the row itself.
  used = jnp.arange(num) <= nearest
  scores = jnp.where(used[None], jnp.sort(squared, axis=1), 0.0).sum(axis=1)
  return jnp.where(valid, scores, jnp.inf)


def krum_weights(
  leaves: Flat, valid: Array, f: Number, chosen: Number
) -> Array:
  """Returns equal weights of the `chosen` rows with the least scores, `[K]`."""
  scores = krum_scores(leaves, valid, f)
  # Absent rows come last also among infinite scores.
  order = jnp.lexsort((scores, ~valid))
  rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
  kept = (rank < chosen) & valid
  return kept / jnp.maximum(kept.sum(), 1).astype(jnp.float32)


def geometric_median_weights(
  leaves: Flat, valid: Array, shares: Array, iterations: int
) -> Array:
  """The weights of the rows in their geometric median, `[K]`.

  They are computed by Weiszfeld's iteration, which ends when the median moves
  by less than `SMALLEST` of its norm. `shares` weight the rows in the sum of
  distances. A median that is at rows moves away from them only if the pull of
  the others, |sum_k p_k (D_k - v) / |D_k - v||, exceeds the share of these
  rows.
  """
  # From the mean, one distant row takes many iterations to lose its weight.
  leaves = present(leaves, valid)
  shares = jnp.where(valid, shares, 0.0)
  start = _weighted_median(leaves, valid, shares)

  def step(loop: _Loop) -> _Loop:
    centre, _, _, number = loop
    apart = distances(leaves, centre)
    at = apart <= SMALLEST * _norm(centre)
    own = jnp.where(at, shares, 0.0)
    pull = jnp.where(at, 0.0, shares / jnp.where(at, 1.0, apart))
    # Weights of the mean to which the rows at other places pull; all rows may
    # be at the centre, and none.
    towards = pull / jnp.maximum(pull.sum(), TINY)
    there = _mean(leaves, towards)
    pulled = pull.sum() * _norm(trees.subtract(there, centre))
    stays = jnp.clip(own.sum() / jnp.maximum(pulled, TINY), 0.0, 1.0)
    weights = (1 - stays) * towards + stays * own / jnp.maximum(own.sum(), TINY)
    new = _mean(leaves, weights)
    return new, weights, _norm(trees.subtract(new, centre)), number + 1

  def moves(loop: _Loop) -> Array:
    centre, _, moved, number = loop
    return (number < iterations) & (moved > SMALLEST * _norm(centre))

  # One step before the loop, whose condition compares the last move.
  first = step((start, shares, jnp.float32(0.0), jnp.int32(0)))
  return jax.lax.while_loop(moves, step, first)[1]


def _mean(leaves: Flat, weights: Array) -> Flat:
  return {n: jnp.tensordot(weights, x, axes=1) for n, x in leaves.items()}


def _weighted_median(leaves: Flat, valid: Array, shares: Array) -> Flat:
  """The least value of each coordinate with half of the shares up to it."""

  def one(values: Array) -> Array:
    order = jnp.argsort(jnp.where(wide(valid, values), values, jnp.inf), axis=0)
    reached = jnp.cumsum(shares[order], axis=0)
    # A half that is missed by a rounding counts.
    first = jnp.argmax(reached >= (0.5 - SMALLEST) * shares.sum(), axis=0)
    place = jnp.take_along_axis(order, first[None], axis=0)
    return jnp.take_along_axis(values, place, axis=0)[0]

  return {name: one(values) for name, values in leaves.items()}


def bounded_weights(
  leaves: Flat, valid: Array, shares: Array, bound: float
) -> Array:
  """The weights that bound the norm of every row, `[K]`."""
  leaves = present(leaves, valid)
  zero = {name: jnp.zeros_like(x[0]) for name, x in leaves.items()}
  norms = distances(leaves, zero)
  # 0 is the median of the norms.
  limit = median({'norm': norms}, valid)['norm'] if bound == 0 else bound
  # The selection avoids 0 / 0 for rows of zeros.
  factor = jnp.where(norms <= limit, 1.0, limit / norms)
  return jnp.where(valid, shares * factor, 0.0)


def _ordered(values: Array, valid: Array) -> Array:
  # Infinite, so that absent rows come after all present ones.
  return jnp.sort(jnp.where(wide(valid, values), values, jnp.inf), axis=0)


def wide(rows: Array, like: Array) -> Array:
  """Reshapes a mask `[K]` to broadcast against leaves `[K, ...]`."""
  return rows.reshape((-1,) + (1,) * (like.ndim - 1))


def _squares(values: Array) -> Array:
  """The sum of squares of each row."""
  return (values**2).reshape(values.shape[0], -1).sum(axis=1)


def _norm(leaves: Flat) -> Array:
  squared = [(x**2).sum() for x in leaves.values()]
  return jnp.sqrt(functools.reduce(jnp.add, squared))
