"""Sums by a component that hides the uploads from the server.

A component (`component.Summation`) adds the terms of `round.server.fold` of all
uploads. The weight of every client is at most 1.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import contexts
from fedreid_jax.method.component import COARSEST, Component, Summation
from fedreid_jax.method.sums import Bound, MessageSum, Sum, Term, Weighted
from fedreid_jax.round.server.fold import Fold, Terms, is_term


class Masked(NamedTuple):
  """The arithmetic of a `Summation`.

  Attributes:
    summation: hook of the component that adds.
  """

  summation: Summation
  sees_weights = False

  def unit(self, bound: Bound) -> float:
    """Returns the largest weight of one client."""
    # The server sees no weights, so that the bound must hold for each of them.
    return bound(np.array([self.summation.largest]))

  def limit(self, name: str, value: Array) -> float:
    """Returns the limit of the change of a parameter or running statistic."""
    del value
    return self.summation.limit(name)


def add(
  fold: Fold,
  states: dict[str, Tree],
  start: Flat,
  uploads: types.Upload,
  ctx: contexts.ServerCtx,
) -> tuple[Any, Terms, Array, Tree]:
  """Returns (state, sums, which uploads are in them, weights of the rule).

  Args:
    fold: sums of the method, in the arithmetic `Masked`.
    uploads: stacked uploads, `[K, ...]`.
  """
  unit = fold.arithmetic.unit

  def one(upload: types.Upload) -> tuple[Terms, Tree]:
    return fold.terms(states, start, upload)

  terms, raw = jax.vmap(one)(uploads)
  limits = fold.limits(start, terms)

  def given(
    part: dict[str, Tree], own: dict[str, float], noise: dict[str, Any]
  ) -> dict[str, Tree]:
    def weighted(name: str, term: Term) -> Weighted:
      # A clipped nan is nan, which has no integer.
      usable = jnp.isfinite(term.weight)
      weight = jnp.where(usable, jnp.clip(term.weight, -1.0, 1.0), 0.0)
      return Weighted(weight, term.values, own[name], noise.get(name))

    return {
      name: jax.tree.map(
        lambda term, name=name: weighted(name, term), tree, is_leaf=is_term
      )
      for name, tree in part.items()
    }

  # The deviation is for the sum of the rule. The terms have weights divided by
  # the unit, and so has the noise.
  noise: Terms = Terms({}, {}, {}, {}, {})
  if fold.rule.noise:
    deviation = fold.rule.noise(states[fold.owner]) / unit(fold.rule.bound)
    noise = noise._replace(model=dict.fromkeys(terms.model, deviation))
  of_messages = {
    name: made.noise(states[name]) / unit(made.bound)
    for name, made in fold.received.items()
    if made.noise
  }
  noise = noise._replace(messages=of_messages)
  parts = zip(terms, limits, noise, strict=True)
  weighted = Terms(*(given(*part) for part in parts))
  state, sums, arrived = fold.arithmetic.summation.add(weighted, ctx)
  return state, sums, arrived, raw


def check(components: Sequence[Component], adder: Component) -> None:
  """Refuses components whose sums would be too coarse or lack noise.

  Raises:
    ConfigError: if there is such a component.
  """
  summation = adder.summation
  assert summation
  for other in components:
    rule, name = other.aggregation, other.name
    receive = other.server.receive if other.server else None
    limits: list[float] = []
    noisy = False
    if isinstance(receive, MessageSum):
      limits.append(receive.limit)
      noisy = bool(receive.noise)
    if isinstance(rule, Sum):
      noisy |= bool(rule.noise)
      limits += rule.divisor.limits.values() if rule.divisor else ()
    if noisy and 'draws_noise' not in adder.properties:
      raise errors.ConfigError(
        f'{adder.name!r} does not draw the noise of {name!r}',
        'components',
        f'remove {adder.name!r} or {name!r}',
      )
    if any(summation.rounding(limit) > COARSEST for limit in limits):
      raise errors.ConfigError(
        f'{adder.name!r} rounds too coarsely for the sums of {name!r}',
        f'{adder.name}.bits',
        'raise it, or lower fraction',
      )
