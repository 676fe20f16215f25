"""Joins the sums and the uploads of the waves of a round."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedreid_jax.core import trees, types
from fedreid_jax.round.server.fold import Fold, Folded, Totals


def add(fold: Fold, totals: Totals, more: Totals) -> Totals:
  """Returns the sums over the clients of two waves."""
  # As if the waves were two devices of a mesh, by vmap with a named axis.

  def merged(one: Totals) -> Totals:
    return fold.merge(one, 'waves')

  both = jax.tree.map(lambda *x: jax.numpy.stack(x), totals, more)
  return trees.rows(jax.vmap(merged, axis_name='waves')(both), 0)


def join(rows: Sequence[Any], totals: Totals, cohort: int) -> Folded:
  """Returns the uploads of a round, in canonical order and `[K, ...]`.

  Args:
    rows: `(uploads, raw, far)` of each wave on the host, `[lanes, ...]`.
    totals: sums over all waves.
    cohort: `K`.
  """

  def column(*parts: np.ndarray) -> np.ndarray:
    # The last row is an empty lane, which is repeated below if the waves have
    # fewer lanes than K.
    return np.concatenate([*parts, np.zeros_like(parts[0][:1])])

  uploads, raw, far = jax.tree.map(column, *rows)
  index = uploads.index
  index[-1] = -1
  order = np.argsort(np.where(index < 0, np.iinfo(np.int32).max, index))
  order = np.append(order, [-1] * cohort)[:cohort]
  uploads, raw, far = trees.rows((uploads, raw, far), order)
  return Folded(uploads, raw, far, totals)


def ranks(index: np.ndarray, parts: Sequence[types.ClientTask]) -> np.ndarray:
  """Returns the positions of uploads in the order of sampling, int32 `[K]`.

  Args:
    index: client of each upload, -1 if empty, `[K]`.
    parts: tasks of each wave.
  """
  drawn = {
    int(client): int(position)
    for tasks in parts
    for client, position in zip(tasks.index, tasks.drawn, strict=True)
    if client >= 0
  }
  return np.array([drawn.get(int(k), 0) for k in index], np.int32)
