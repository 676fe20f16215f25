"""Means that few wrong uploads cannot move far, as functions of stacked rows.

Leaves are `{name: [K, ...]}`, one row for each upload, and `valid` says which
rows are present; absent rows have no effect, whatever their values. Distances
are over all leaves together, and computed leaf by leaf. The number of wrong
rows `f` may be traced, like the number of valid rows.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Flat, Number

SMALLEST = 1e-6  # a distance of the geometric median, and its relative change
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
  """Returns the leaves with zeros in absent rows, which may not be finite."""
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
    return jnp.where(low == high, low, 0.5 * low + 0.5 * high)

  return {name: one(values) for name, values in leaves.items()}


def trimmed_mean(leaves: Flat, valid: Array, f: Number) -> Flat:
  """Returns the mean of every coordinate without its `f` ends on either side.

  Args:
    leaves: values `[K, ...]`.
    valid: bool `[K]`.
    f: number of values to drop on each side; `2 f` is below the number of valid
      rows.
  """
  place = jnp.arange(len(valid))
  count = valid.sum()
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

  It is the sum of the squared distances to the nearest K - f - 2 others, or to
  one other if there are fewer.
  """
  rows, num = present(leaves, valid), len(valid)

  def apart(row: Flat) -> Array:
    return distances(rows, row) ** 2

  # One row at a time, since all differences are K times the uploads.
  squared = cast(Array, jax.lax.map(apart, rows))
  both = valid[:, None] & valid[None]
  squared = jnp.where(both, squared, jnp.inf)
  squared = jnp.where(jnp.eye(num, dtype=bool), 0.0, squared)
  count = valid.sum()
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

  Weiszfeld's iteration starts at the median of every coordinate, since from the
  mean one distant row takes many iterations to lose its weight.

  Args:
    leaves: values `[K, ...]`.
    valid: bool `[K]`.
    shares: weights of the rows in the sum of distances, `[K]`.
    iterations: largest number of iterations; they end when the median moves by
      less than `SMALLEST` of its norm.
  """
  start = median(leaves, valid)
  leaves = present(leaves, valid)
  shares = jnp.where(valid, shares, 0.0)

  def step(loop: _Loop) -> _Loop:
    centre, _, _, number = loop
    weights = shares / jnp.maximum(distances(leaves, centre), SMALLEST)
    weights /= weights.sum()
    new = {n: jnp.tensordot(weights, x, axes=1) for n, x in leaves.items()}
    return new, weights, _norm(trees.subtract(new, centre)), number + 1

  def moves(loop: _Loop) -> Array:
    centre, _, moved, number = loop
    return (number < iterations) & (moved > SMALLEST * _norm(centre))

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
  factor = jnp.where(norms <= limit, 1.0, limit / norms)
  return jnp.where(valid, shares * factor, 0.0)


def _ordered(values: Array, valid: Array) -> Array:
  return jnp.sort(jnp.where(_wide(valid, values), values, jnp.inf), axis=0)


def _wide(rows: Array, like: Array) -> Array:
  return rows.reshape((-1,) + (1,) * (like.ndim - 1))


def _squares(values: Array) -> Array:
  """Returns the sum of squares of each row."""
  return (values**2).reshape(values.shape[0], -1).sum(axis=1)


def _norm(leaves: Flat) -> Array:
  squared = [(x**2).sum() for x in leaves.values()]
  return jnp.sqrt(functools.reduce(jnp.add, squared))
