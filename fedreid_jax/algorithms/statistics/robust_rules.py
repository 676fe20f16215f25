"""Robust means of stacked uploads, which few wrong rows cannot move far.

Leaves are `{name: [K, ...]}`, one row for each upload, and `valid` says which
rows are present; absent rows have no effect, even if they are not finite.
Distances are over all leaves together. The number of wrong rows `f` and the
number of valid rows may be traced.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Flat, Number

# Least distance in the geometric median, and relative change at which it stops.
SMALLEST = 1e-6
# Centre, weights, norm of the last move, and number of iterations.
_Loop = tuple[Flat, Array, Array, Array]


def tolerated(count: Array, f: Number, spare: int) -> Array:
  """Returns the number of wrong rows that `count` rows allow, at most `f`.

  Args:
    count: number of valid rows.
    f: number of wrong rows among all rows.
    spare: number of rows that the rule needs beside `2 f`.
  """
  return jnp.clip((count - spare) // 2, 0, f)


def present(leaves: Flat, valid: Array) -> Flat:
  """Replaces absent rows, which may not be finite, by zeros."""
  # Not a product with the mask: 0 * nan is nan.
  return {n: jnp.where(_wide(valid, x), x, 0.0) for n, x in leaves.items()}


def median(leaves: Flat, valid: Array) -> Flat:
  """Returns the median of every coordinate, the mean of two if K is even.

  It is infinite without valid rows.
  """
  count = valid.sum()

  def one(values: Array) -> Array:
    ordered = _ordered(values, valid)
    low = ordered[jnp.maximum(count - 1, 0) // 2]
    high = ordered[jnp.minimum(count // 2, len(valid) - 1)]
    # Halves are added, because the sum of two large values may overflow.
    return jnp.where(low == high, low, 0.5 * low + 0.5 * high)

  return {name: one(values) for name, values in leaves.items()}


def trimmed_mean(leaves: Flat, valid: Array, f: Number) -> Flat:
  """Returns the mean of every coordinate without `f` values at either end.

  Args:
    leaves: values `[K, ...]`.
    valid: bool `[K]`.
    f: number of values to drop on each side; `2 f` is below the number of valid
      rows.
  """
  place = jnp.arange(len(valid))
  count = valid.sum()
  # Absent rows are sorted to the end, behind `count` places.
  kept = (place >= f) & (place < count - f)
  number = jnp.maximum(kept.sum(), 1)

  def one(values: Array) -> Array:
    ordered = _ordered(values, valid)
    return jnp.where(_wide(kept, ordered), ordered, 0.0).sum(axis=0) / number

  return {name: one(values) for name, values in leaves.items()}


def distances(leaves: Flat, centre: Flat) -> Array:
  """Returns the Euclidean distance of each row to a centre, `[K]`."""
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
  """Returns equal weights of the rows with the least scores of Krum, `[K]`.

  Args:
    leaves: values `[K, ...]`.
    valid: bool `[K]`.
    f: number of wrong rows.
    chosen: number of rows that have a weight, at least 1.
  """
  scores = krum_scores(leaves, valid, f)
  # Absent rows come last also among infinite scores.
  order = jnp.lexsort((scores, ~valid))
  rank = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
  kept = (rank < chosen) & valid
  return kept / jnp.maximum(kept.sum(), 1).astype(jnp.float32)


def geometric_median_weights(
  leaves: Flat, valid: Array, shares: Array, iterations: int
) -> Array:
  """Returns the weights of the rows in their geometric median, `[K]`.

  They are computed by Weiszfeld's iteration.

  Args:
    leaves: values `[K, ...]`.
    valid: bool `[K]`.
    shares: weights of the rows in the sum of distances, `[K]`.
    iterations: largest number of iterations; they end when the median moves by
      less than `SMALLEST` of its norm.
  """
  # From the mean, one distant row takes many iterations to lose its weight.
  start = median(leaves, valid)
  leaves = present(leaves, valid)
  shares = jnp.where(valid, shares, 0.0)

  def step(loop: _Loop) -> _Loop:
    centre, _, _, number = loop
    # A row at the centre would have an infinite weight.
    weights = shares / jnp.maximum(distances(leaves, centre), SMALLEST)
    weights /= weights.sum()
    new = {n: jnp.tensordot(weights, x, axes=1) for n, x in leaves.items()}
    return new, weights, _norm(trees.subtract(new, centre)), number + 1

  def moves(loop: _Loop) -> Array:
    centre, _, moved, number = loop
    return (number < iterations) & (moved > SMALLEST * _norm(centre))

  # One step before the loop, whose condition compares the last move.
  first = step((start, shares, jnp.float32(0.0), jnp.int32(0)))
  return jax.lax.while_loop(moves, step, first)[1]


def bounded_weights(
  leaves: Flat, valid: Array, shares: Array, bound: float
) -> Array:
  """Returns the weights that bound the norm of every row, `[K]`.

  Args:
    leaves: differences to the server's model `[K, ...]`.
    valid: bool `[K]`.
    shares: weights of the rows, `[K]`.
    bound: largest norm, or 0 for the median of the norms.
  """
  leaves = present(leaves, valid)
  zero = {name: jnp.zeros_like(x[0]) for name, x in leaves.items()}
  norms = distances(leaves, zero)
  limit = median({'norm': norms}, valid)['norm'] if bound == 0 else bound
  # The selection avoids 0 / 0 for rows of zeros.
  factor = jnp.where(norms <= limit, 1.0, limit / norms)
  return jnp.where(valid, shares * factor, 0.0)


def _ordered(values: Array, valid: Array) -> Array:
  # Infinite, so that absent rows come after all present ones.
  return jnp.sort(jnp.where(_wide(valid, values), values, jnp.inf), axis=0)


def _wide(rows: Array, like: Array) -> Array:
  return rows.reshape((-1,) + (1,) * (like.ndim - 1))


def _squares(values: Array) -> Array:
  """Returns the sum of squares of each row."""
  return (values**2).reshape(values.shape[0], -1).sum(axis=1)


def _norm(leaves: Flat) -> Array:
  squared = [(x**2).sum() for x in leaves.values()]
  return jnp.sqrt(functools.reduce(jnp.add, squared))
