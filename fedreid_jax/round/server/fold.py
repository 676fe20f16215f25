"""Sums over the clients of a round, from the terms of one upload to the model.

With the change D_k of the shared parameters and the weight a_k of a rule
(`method.sums.Sum`), a client adds

  (a_k / A) D_k,  v_k / V for numbers v_k,  (u_k / U) m_k for messages m_k,

where the arithmetic chooses the units A, V and U. The sums of the numbers give
the divisor d of the rule, by default sum_k a_k, and the model is

  w + (A / d) sum_k (a_k / A) D_k.

The arithmetic (`round.server.arithmetic`) is float32, fixed point in
deterministic mode, or the arithmetic of a `Summation`. The first two are
carried through the loop over the clients, so that only the weights of an upload
are kept, and messages of which a sum does not suffice.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import aggregation, component, contexts
from fedreid_jax.method.component import Component
from fedreid_jax.method.sums import (
  BY_IMAGES,
  MessageSum,
  Sum,
  Term,
  by_size,
)
from fedreid_jax.round.server import arithmetic
from fedreid_jax.round.server.arithmetic import FixedPoint

_NEVER = jnp.iinfo(jnp.int32).max  # position of no client; every other is lower


class Terms(NamedTuple):
  """The terms of one upload (`sums.Term`), or the sums of terms, by name.

  Attributes:
    model: changes of the shared parameters, with the weights of the rule.
    by_size: changes of the shared parameters, weighted by number of images.
    images: the number of images, if any change is weighted by it.
    numbers: numbers of the divisor.
    messages: messages of which sums suffice, trees.
  """

  model: dict[str, Any]
  by_size: dict[str, Any]
  images: dict[str, Any]
  numbers: dict[str, Any]
  messages: dict[str, Tree]


@struct.dataclass
class Totals:
  """Sums over the clients so far.

  Attributes:
    limits: limits of the values of each sum, which are constant in a round.
    sums: sums in the representation of the arithmetic.
    drawn: position of the client of `first` in the order of sampling, int32.
    first: running statistics of the client sampled first.
  """

  limits: Terms
  sums: Terms
  drawn: Array
  first: Flat


@struct.dataclass
class Folded:
  """The uploads of a round of sums.

  Attributes:
    uploads: uploads without shared parameters and summed messages, `[K, ...]`;
      their `finite` is whether the upload was added.
    raw: weights of the rule before the division, `[K]` or by parameter.
    far: whether an upload is finite but was left out because a value is out of
      range, bool `[K]`.
    totals: sums over all uploads.
  """

  uploads: types.Upload
  raw: Tree
  far: Array
  totals: Totals


class Mean(NamedTuple):
  """The model of a round of sums.

  Attributes:
    models: the new model, `[1, ...]`.
    weights: weights of the uploads, `[1, K]` or by parameter.
    fell_back: whether weights by number of images replaced those of the rule.
    stayed: whether parameters stayed, because the weights were not usable.
  """

  models: Flat
  weights: Array | dict[str, Array]
  fell_back: Array
  stayed: Array


class Fold(NamedTuple):
  """The sums of a method.

  Attributes:
    owner: name of the component with the rule, '' for weights by size.
    rule: rule of that component.
    received: sums of messages, by component.
    batch_stats_rule: rule for running statistics, `aggregation.BatchStatsRule`.
    arithmetic: arithmetic of the sums.
    models: whether the uploads have models; false before round 0.
  """

  owner: str
  rule: Sum
  received: dict[str, MessageSum]
  batch_stats_rule: str
  arithmetic: Any
  models: bool = True

  def untrained(self) -> 'Fold':
    """Returns the sums before round 0, when uploads have no models."""
    return self._replace(models=False)

  def states(self, server: types.ServerState) -> dict[str, Tree]:
    """Returns the states that `MessageSum.term` reads, by name."""
    return {name: server.states[name] for name in self.received}

  def terms(
    self, states: dict[str, Tree], start: Flat, upload: types.Upload
  ) -> tuple[Terms, Tree]:
    """Returns (terms of one upload, weights before the division)."""
    messages = self._messages(states, upload)
    if not self.models:
      return Terms({}, {}, {}, {}, messages), ()
    ctx = contexts.UploadCtx(
      upload.index,
      upload.num_examples,
      upload.num_steps,
      upload.shared,
      start,
    )
    message = upload.messages.get(self.owner, ())
    raw = self.rule.weight(message, ctx)
    unit = self.arithmetic.unit(self.rule.bound)
    by_rule = jax.tree.map(lambda weight: _over(weight, unit), raw)
    images = _over(upload.num_examples, self.arithmetic.unit(by_size))
    model: dict[str, Term] = {}
    by_images: dict[str, Term] = {}
    for name in self._averaged(start):
      change = upload.shared[name] - start[name]
      if not isinstance(raw, dict) or name in raw:
        model[name] = Term(of_leaf(by_rule, name), change)
      if name not in model or self.rule.fallback:
        by_images[name] = Term(images, change)
    return Terms(
      model,
      by_images,
      {'': _number(images)} if by_images else {},
      self._numbers(by_rule, message, ctx),
      messages,
    ), raw

  def limits(self, start: Flat, terms: Terms) -> Terms:
    """Returns the limit of each sum, by name.

    Args:
      terms: terms of an upload, or their shapes.
    """
    # Limits depend on the server's model only, so that they are constant in a
    # round and the same on all devices.
    of_model = {
      n: self.arithmetic.limit(n, start[n]) for n in terms.model | terms.by_size
    }
    return Terms(
      {n: of_model[n] for n in terms.model},
      {n: of_model[n] for n in terms.by_size},
      dict.fromkeys(terms.images, 1.0),
      {n: self._limit_of_number(n) for n in terms.numbers},
      {n: self.received[n].limit for n in terms.messages},
    )

  def zeros(
    self, start: Flat, states: dict[str, Tree], upload: types.Upload
  ) -> Totals:
    """Returns the sums over no clients."""
    terms, _ = jax.eval_shape(self.terms, states, start, upload)
    limits = self.limits(start, terms)

    def zero(limit: Any, term: Term) -> Any:
      del limit
      return self.arithmetic.zero(term)

    _, running = trees.trainable(start)
    chosen = self.models and self.batch_stats_rule == 'first_client'
    return Totals(
      limits=jax.tree.map(jnp.float32, limits),
      sums=each(zero, limits, terms),
      drawn=jnp.int32(_NEVER),
      first={n: start[n] for n in running} if chosen else {},
    )

  def add(
    self,
    totals: Totals,
    start: Flat,
    states: dict[str, Tree],
    upload: types.Upload,
    drawn: Array,
  ) -> tuple[Totals, tuple[types.Upload, Tree, Array]]:
    """Adds one upload.

    Returns:
      (sums, (the rest of the upload, its weights before the division, whether a
      value is out of range)).
    """
    # Without the barrier XLA could fuse the client's program with the sums, and
    # its bits would depend on what is done to the upload.
    upload = jax.lax.optimization_barrier(upload)
    terms, raw = self.terms(states, start, upload)
    near = each(
      lambda limit, term: self.arithmetic.in_range(term, limit),
      totals.limits,
      terms,
    )
    near = trees.all_true(jax.tree.leaves(near))
    finite = aggregation.valid_upload(upload)
    valid = finite & near

    def plus(limit: Array, term: Term, total: Any) -> Any:
      return self.arithmetic.add(total, term, limit)

    first = {n: upload.shared[n] for n in totals.first}
    added = Totals(
      totals.limits,
      each(plus, totals.limits, terms, totals.sums),
      jnp.minimum(drawn, totals.drawn),
      trees.select(drawn < totals.drawn, first, totals.first),
    )
    kept = types.Upload(
      upload.index,
      {},
      upload.num_examples,
      upload.num_steps,
      valid,
      {n: x for n, x in upload.messages.items() if n not in terms.messages},
    )
    # A choice, as an upload that is not valid may have turned sums into nan.
    return trees.select(valid, added, totals), (kept, raw, finite & ~near)

  def over(
    self,
    start: Flat,
    states: dict[str, Tree],
    uploads: types.Upload,
    drawn: Array,
  ) -> Folded:
    """Returns the sums over stacked uploads, in their order.

    Args:
      uploads: stacked uploads, `[K, ...]`.
      drawn: positions of the clients in the order of sampling, int32 `[K]`.
    """

    def step(totals: Totals, row: Any) -> Any:
      return self.add(totals, start, states, *row)

    zeros = self.zeros(start, states, trees.rows(uploads, 0))
    totals, (kept, raw, far) = jax.lax.scan(step, zeros, (uploads, drawn))
    return Folded(kept, raw, far, totals)

  def merge(self, totals: Totals, axis: str) -> Totals:
    """Returns the sums over the clients of all devices along a mesh axis."""
    sums = jax.lax.psum(totals.sums, axis)
    if not totals.first:  # nobody reads the position then
      return Totals(totals.limits, sums, jnp.int32(_NEVER), {})
    drawn = jax.lax.pmin(totals.drawn, axis)
    chosen = (totals.drawn == drawn) & (drawn < _NEVER)
    first = arithmetic.pick(totals.first, chosen, axis)
    return Totals(totals.limits, sums, drawn, first)

  def read(self, totals: Totals) -> Terms:
    """Returns the sums as float32."""

    def one(limit: Array, total: Any) -> Array:
      return self.arithmetic.read(total, limit)

    return each(one, totals.limits, totals.sums)

  def messages(self, sums: Terms) -> dict[str, Tree]:
    """Returns the sums of messages, multiplied by their units, by component."""

    def whole(name: str) -> Tree:
      unit = self.arithmetic.unit(self.received[name].bound)
      return jax.tree.map(lambda total: unit * total, sums.messages[name])

    return {name: whole(name) for name in sums.messages}

  def mean(
    self,
    start: Flat,
    sums: Terms,
    first: Flat,
    uploads: types.Upload,
    raw: Tree,
    valid: Array,
  ) -> Mean:
    """Returns the new model.

    Args:
      start: the server's model, `[1, ...]`.
      sums: sums of `read` or of a `Summation`.
      first: running statistics of the client sampled first, {} if the rule does
        not use them.
      uploads: uploads, perhaps without shared parameters, `[K, ...]`.
      valid: whether each upload is in the sums, bool `[K]`.
    """
    trusted = self._trusted(raw, valid)
    of_size = _inverse(sums.images['']) if sums.images else jnp.float32(0.0)
    by_rule = {n: self._over_divisor(sums, trusted, n) for n in sums.model}
    usable = trees.all_true(inverse != 0.0 for inverse in by_rule.values())
    unusable = ~usable & valid.any()
    # All parameters fall back if the divisor of one cannot be used.
    fell_back = unusable & self.rule.fallback

    def moved(name: str) -> Array:
      old = start[name]
      change = jnp.zeros(old.shape[1:], jnp.float32)
      if name in sums.model:
        change = sums.model[name] * by_rule[name]
      if name in sums.by_size:
        size = sums.by_size[name] * of_size
        takes = jnp.bool_(name not in sums.model) | fell_back
        change = jnp.where(takes, size, change)
      return (old + change[None]).astype(old.dtype)

    names = [*sums.model, *(n for n in sums.by_size if n not in sums.model)]
    new = {name: moved(name) for name in names}
    there = {n: x[None].astype(start[n].dtype) for n, x in first.items()}
    kept = {n: start[n] for n in there}
    models = start | trees.select(valid.any(), there, kept) | new
    shares = aggregation.normalise(uploads.num_examples, valid[None])
    weights = self._weights(raw, by_rule, shares, valid, fell_back)
    return Mean(models, weights, fell_back, unusable & ~fell_back)

  def _averaged(self, start: Flat) -> list[str]:
    """Returns the names of the parameters that are averaged, sorted."""
    if self.batch_stats_rule == 'average':
      return sorted(start)
    return sorted(trees.trainable(start)[0])

  def _numbers(
    self, by_rule: Tree, message: Any, ctx: contexts.UploadCtx
  ) -> dict[str, Term]:
    """Returns the numbers of the divisor; by default the weights themselves."""
    divisor = self.rule.divisor
    if divisor is None:
      own = by_rule if isinstance(by_rule, dict) else {'': by_rule}
      return {name: _number(share) for name, share in own.items()}
    return {
      name: Term(
        _over(weight, self.arithmetic.unit(self.rule.bound)),
        jnp.asarray(value, jnp.float32),
      )
      for name, (weight, value) in divisor.numbers(message, ctx).items()
    }

  def _limit_of_number(self, name: str) -> float:
    divisor = self.rule.divisor
    return divisor.limits[name] if divisor else 1.0

  def _messages(
    self, states: dict[str, Tree], upload: types.Upload
  ) -> dict[str, Tree]:
    def of(name: str) -> Tree:
      made, ctx = self.received[name], contexts.ReceiveCtx(upload.index)
      weight, values = made.term(states[name], upload.messages[name], ctx)
      share = _over(weight, self.arithmetic.unit(made.bound))
      return jax.tree.map(lambda value: Term(share, value), values)

    return {name: of(name) for name in self.received if name in upload.messages}

  def _over_divisor(self, sums: Terms, trusted: Array, name: str) -> Array:
    """Returns A / d of a parameter, 0 if the divisor is not usable."""
    divisor = self.rule.divisor
    if divisor is None:
      found = sums.numbers[name if name in sums.numbers else '']
    else:
      unit = self.arithmetic.unit(self.rule.bound)
      found = divisor.of({n: x * unit for n, x in sums.numbers.items()}) / unit
    return jnp.where(trusted, _inverse(found), 0.0)

  def _trusted(self, raw: Tree, valid: Array) -> Array:
    """Returns whether the weights are finite and within their bound, bool."""
    # The server does not see the weights of a `Summation`; `masked.add` clips
    # those that are out of range.
    if not self.arithmetic.sees_weights:
      return jnp.bool_(True)
    found = []
    for weights in jax.tree.leaves(raw):
      weights = jnp.where(valid, weights, 0.0)
      found.append(jnp.isfinite(weights).all())
      if isinstance(self.arithmetic, FixedPoint):
        unit = self.arithmetic.unit(self.rule.bound)
        found.append(jnp.abs(weights).sum() <= unit)
    return trees.all_true(found)

  def _weights(
    self,
    raw: Tree,
    by_rule: dict[str, Array],
    shares: Array,
    valid: Array,
    fell_back: Array,
  ) -> Array | dict[str, Array]:
    """Returns the weights of the uploads, for the log."""

    def one(weights: Array, name: str) -> Array:
      share = _over(weights, self.arithmetic.unit(self.rule.bound))
      found = jnp.where(valid, share, 0.0) * by_rule[name]
      found = jnp.nan_to_num(found, posinf=0.0, neginf=0.0)
      return jnp.where(fell_back, shares, found[None])

    if isinstance(raw, dict):
      return {name: one(raw[name], name) for name in by_rule}
    return one(raw, next(iter(by_rule))) if by_rule else shares


def make(
  components: Sequence[Component],
  aggregator: Component | None,
  batch_stats_rule: str,
  arithmetic_: Any,
) -> Fold:
  """Returns the sums of a method.

  Args:
    aggregator: the component that fills `aggregation` with a `Sum`, if any.
  """
  rule = aggregator.aggregation if aggregator else BY_IMAGES
  assert isinstance(rule, Sum)
  # For a fallback every client of a `Summation` would send a second model.
  if not arithmetic_.sees_weights:
    rule = rule._replace(fallback=False)
  return Fold(
    aggregator.name if aggregator else '',
    rule,
    component.summed(components),
    batch_stats_rule,
    arithmetic_,
  )


def of_leaf(raw: Tree, name: str) -> Array:
  """Returns the weight of a parameter from the result of `Sum.weight`."""
  return raw[name] if isinstance(raw, dict) else raw


def _over(weight: Array, unit: float) -> Array:
  # XLA may compile a division by a constant as this product. Whether it does so
  # depends on the machine, and the bits with it.
  return weight * np.float32(1 / unit)


def _inverse(divisor: Array | float) -> Array:
  """Returns one over a divisor, 0 if this is not above zero and finite."""
  # A division of an array by a number may be compiled as a product with the
  # inverse, which has other bits. The callers therefore always multiply.
  divisor = jnp.asarray(divisor, jnp.float32)
  usable = (divisor > 0) & jnp.isfinite(divisor)
  return jnp.where(usable, 1.0 / jnp.where(usable, divisor, 1.0), 0.0)


def _number(share: Array) -> Term:
  return Term(share, jnp.ones_like(share))


def is_term(leaf: Any) -> bool:
  """Returns whether a node of a tree is a term or a sum of terms."""
  return isinstance(leaf, Term) or arithmetic.is_sum(leaf)


def each(
  fn: Callable[..., Any], limits: Terms, terms: Terms, *more: Terms
) -> Terms:
  """Maps `(limit, term, ...) -> leaf` over all terms.

  All terms of a name have the same limit.
  """

  def part(own: dict[str, Any], *given: dict[str, Any]) -> dict[str, Any]:
    return {
      name: jax.tree.map(
        lambda *leaves, name=name: fn(own[name], *leaves),
        *(one[name] for one in given),
        is_leaf=is_term,
      )
      for name in given[0]
    }

  parts = zip(limits, terms, *more, strict=True)
  return Terms(*(part(*one) for one in parts))
