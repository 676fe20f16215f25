"""A round of which the server learns sums only (`component.Summation`).

With the change D_k of the shared parameters of client k and its raw weight r_k
(`Aggregation.raw`), at most R for any client, the clients add

  (r_k / R) D_k,  v_k / V for numbers v_k,  (u_k / U) m_k for messages m_k,

with weights of at most 1. The sums of the numbers give the divisor d of the
rule (`sums.Divisor`), by default the sum of the r_k. The model is

  w + (R / d) sum_k (r_k / R) D_k.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import param_filter, types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import component, contexts
from fedreid_jax.method.component import Aggregation, Component, Summation
from fedreid_jax.method.sums import Bound, Divisor, Summed, Weighted
from fedreid_jax.round.server.totals import of_leaf


class Terms(NamedTuple):
  """What is added, `sums.Weighted`, and then the sums.

  Attributes:
    model: changes of the shared parameters by name.
    images: weights by number of images, if these weight any parameter.
    numbers: of the divisor, by name.
    messages: of components of which sums suffice, by name.
  """

  model: dict[str, Any]
  images: list[Any]
  numbers: dict[str, Any]
  messages: dict[str, Tree]


class Added(NamedTuple):
  """What the server learns of a round.

  Attributes:
    state: of the component that adds.
    models: the new model, `[1, ...]`.
    messages: sums of the messages of each component, by name.
    arrived: which uploads are in the sums, bool `[K]`.
  """

  state: Any
  models: Flat
  messages: dict[str, Tree]
  arrived: Array


class SummedRound(NamedTuple):
  """The sums of a method.

  Attributes:
    name: of the component that adds.
    summation: of that component.
    owner: name of the component with the rule, '' for weights by size.
    rule: the aggregation of that component.
    received: components that need sums of messages.
    batch_stats_rule: rule for running statistics, `aggregation.BatchStatsRule`.
  """

  name: str
  summation: Summation
  owner: str
  rule: Aggregation | None
  received: dict[str, Summed]
  batch_stats_rule: str

  def check(self) -> None:
    """Refuses values of which the sums would be too coarse, or lack noise.

    Raises:
      ConfigError: for the first component that adds such values.
    """
    asking = [name for name, one in self.received.items() if one.noise]
    if self.rule and self.rule.noise:
      asking.append(self.owner)
    if asking and not self.summation.noisy:
      raise errors.ConfigError(
        f'{self.name!r} does not draw the noise of {asking[0]!r}',
        'components',
        f'remove {self.name!r} or {asking[0]!r}',
      )
    limits = [(name, summed.limit) for name, summed in self.received.items()]
    if self.rule and self.rule.divisor:
      unit = self._unit(self.rule.bound)
      bounds = self.rule.divisor.bounds.values()
      limits += [(self.owner, self._unit(bound) / unit) for bound in bounds]
    for name, limit in limits:
      if limit > self.summation.coarsest:
        raise errors.ConfigError(
          f'{self.summation.bits} bits are too few for the sums of {name!r}',
          f'{self.name}.bits',
          'raise it, or lower fraction',
        )

  def capped(self, uploads: types.Upload) -> types.Upload:
    """Returns uploads with numbers of images of at most the largest weight."""
    images = jnp.minimum(uploads.num_examples, self.summation.largest)
    return dataclasses.replace(uploads, num_examples=images)

  def add(
    self,
    states: dict[str, Tree],
    uploads: types.Upload,
    start: Flat,
    ctx: contexts.ServerCtx,
  ) -> Added:
    """Returns the sums over the uploads.

    Args:
      states: of the server, by name.
      uploads: of `capped`, `[K, ...]`.
      start: the model before the round, `[1, ...]`.
      ctx: context of the component that adds.
    """
    by_size = _share(uploads.num_examples, self.summation.largest)
    raw, numbers = self._of_rule(uploads, {n: x[0] for n, x in start.items()})
    unit = self._unit(self.rule.bound if self.rule else None)
    noise = None
    if self.rule and self.rule.noise:
      noise = self.rule.noise(states[self.owner]) / unit
    model: dict[str, Any] = {}
    own: set[str] = set()
    for name in self._averaged(start):
      weight = by_size
      if self.rule and not (isinstance(raw, dict) and name not in raw):
        weight = _share(of_leaf(raw, name), unit)
        own.add(name)
      change = uploads.shared[name] - start[name]
      limit = self.summation.limit(name)
      model[name] = Weighted(
        weight, change, limit, noise if name in own else None
      )
    images = [_number(by_size)] if own < model.keys() else []
    terms = Terms(model, images, numbers, self._messages(states, uploads))
    state, found, arrived = self.summation.add(terms, ctx)
    return Added(
      state,
      self._model(found, own, unit, start),
      self._sums_of_messages(found.messages),
      arrived,
    )

  def _averaged(self, start: Flat) -> list[str]:
    if self.batch_stats_rule == 'average':
      return sorted(start)
    return sorted(param_filter.trainable(start)[0])

  def _unit(self, bound: Bound | None) -> float:
    """Returns the largest weight of one client."""
    return bound(np.array([self.summation.largest])) if bound else 1.0

  def _of_rule(
    self, uploads: types.Upload, start: Flat
  ) -> tuple[Tree, dict[str, Weighted]]:
    """Returns (raw weights, numbers of the divisor), both of `[K]`."""
    rule = self.rule
    if rule is None or rule.raw is None:
      return (), {}
    raw, divisor = rule.raw, _divisor(rule)

    def one(message: Tree, upload: types.Upload) -> tuple[Tree, Flat]:
      ctx = contexts.UploadCtx.of(upload, start)
      return raw(message, ctx), divisor.numbers(message, ctx)

    messages = uploads.messages.get(self.owner, ())
    found, numbers = jax.vmap(one)(messages, uploads)
    if isinstance(found, dict) and rule.divisor is None:
      raise errors.ConfigError(
        f'the weights of {self.owner!r} differ between parameters and have no '
        'divisor',
        'components',
        f'give its Aggregation one, or remove {self.name!r}',
      )
    return found, {
      n: _number(_share(x, self._unit(divisor.bounds[n])))
      for n, x in numbers.items()
    }

  def _messages(
    self, states: dict[str, Tree], uploads: types.Upload
  ) -> dict[str, Tree]:
    def of(name: str) -> Tree:
      summed, state = self.received[name], states[name]

      def term(message: Tree, index: Array) -> tuple[Array, Tree]:
        return summed.term(state, message, contexts.ReceiveCtx(index))

      weight, values = jax.vmap(term)(uploads.messages[name], uploads.index)
      unit = self._unit(summed.bound)
      weight = _share(weight, unit)
      noise = summed.noise(state) / unit if summed.noise else None

      def weighted(value: Array) -> Weighted:
        return Weighted(weight, value, summed.limit, noise)

      return jax.tree.map(weighted, values)

    return {name: of(name) for name in self.received}

  def _sums_of_messages(self, found: dict[str, Tree]) -> dict[str, Tree]:
    def whole(name: str) -> Tree:
      unit = self._unit(self.received[name].bound)

      def scaled(total: Array) -> Array:
        return unit * total

      return jax.tree.map(scaled, found[name])

    return {name: whole(name) for name in found}

  def _model(
    self, found: Terms, own: set[str], unit: float, start: Flat
  ) -> Flat:
    divisor: Array | float = 0.0
    if self.rule and own:
      rule = _divisor(self.rule)
      numbers = {
        n: x * self._unit(rule.bounds[n]) for n, x in found.numbers.items()
      }
      divisor = rule.of(numbers) / unit
    by_size = found.images[0] if found.images else 0.0

    def moved(name: str) -> Array:
      by, old = jnp.asarray(divisor if name in own else by_size), start[name]
      usable = (by > 0) & jnp.isfinite(by)
      # Arrays over a number are compiled as such or by its inverse, with other
      # bits.
      mean = found.model[name] * (1.0 / jnp.where(usable, by, 1.0))
      return jnp.where(usable, old + mean, old).astype(old.dtype)

    return start | {name: moved(name) for name in found.model}


def make(
  components: Sequence[Component],
  adder: Component | None,
  aggregator: Component | None,
  batch_stats_rule: str,
) -> SummedRound | None:
  """Returns the sums of a method, None if the server sees uploads.

  Args:
    components: of the method.
    adder: the component that fills `summation`, if any.
    aggregator: the component that fills `aggregation`, if any.
    batch_stats_rule: rule for running statistics.

  Raises:
    ConfigError: if the bits of a sum are too few for what a component adds.
  """
  if adder is None or adder.summation is None:
    return None
  made = SummedRound(
    adder.name,
    adder.summation,
    aggregator.name if aggregator else '',
    aggregator.aggregation if aggregator else None,
    component.summed(components),
    batch_stats_rule,
  )
  made.check()
  return made


def _divisor(rule: Aggregation) -> Divisor:
  """Returns that of a rule, by default the sum of its raw weights."""
  if rule.divisor:
    return rule.divisor
  raw, bound = rule.raw, rule.bound
  assert raw and bound

  def numbers(message: Tree, ctx: contexts.UploadCtx) -> Flat:
    return {'raw': raw(message, ctx)}

  def total(found: dict[str, Array]) -> Array:
    return found['raw']

  return Divisor(numbers, {'raw': bound}, total)


def _share(weight: Array, unit: float) -> Array:
  """Returns weights over their largest; one that is not finite counts as 0."""
  # XLA may divide by a constant so; the bits then depend on the machine.
  share = weight * np.float32(1 / unit)
  return jnp.where(jnp.isfinite(share), jnp.clip(share, -1.0, 1.0), 0.0)


def _number(value: Array) -> Weighted:
  return Weighted(jnp.ones_like(value), value, 1.0)
