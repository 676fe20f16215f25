"""Streamed reduction: uploads are added to sums as soon as a client trained.

A stacked round keeps all uploads, `K` models on the devices. A streamed round
carries sums through the loop over the clients instead: of the changes `D_k` of
the shared parameters, weighted by `a_k = Aggregation.raw`, and of the messages
of which `sums.Summed` needs sums only. What is kept of an upload are its other
messages and some numbers. With the weights `p_k = c a_k` of the rule, known
when all clients have trained, the model is

  w + sum_k p_k D_k = w + (sum_k p_k / sum_k a_k) sum_k a_k D_k.

In deterministic mode the sums are exact (`fixed_point`), so that they have the
same bits on any number of devices and in any order of the clients. Otherwise
they are float32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import param_filter, trees, types
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.method import aggregation, component, contexts, sums
from fedreid_jax.method.component import Aggregation, Component
from fedreid_jax.round.server import fixed_point, running_sum
from fedreid_jax.round.server.running_sum import Arithmetic
from fedreid_jax.round.server.totals import Totals, of_leaf

# The change of a parameter may be so many powers of two larger than the
# largest parameter of its array, and running statistics are not bounded by
# their initial values.
HEADROOM, HEADROOM_STATISTICS = 6, 16
_NEVER = jnp.iinfo(jnp.int32).max


class Fold(NamedTuple):
  """The sums of a method.

  Attributes:
    owner: name of the component with the rule, '' for weights by size.
    rule: the aggregation of that component.
    received: components that need sums of messages.
    batch_stats_rule: rule for running statistics, `aggregation.BatchStatsRule`.
    sizes: numbers of images of the K largest clients, float64 `[K]`.
    exact: whether sums are in fixed point.
    models: whether the uploads have models, False before round 0.
  """

  owner: str
  rule: Aggregation | None
  received: dict[str, sums.Summed]
  batch_stats_rule: str
  sizes: np.ndarray
  exact: bool
  models: bool = True

  @property
  def cohort(self) -> int:
    """Returns `K`."""
    return len(self.sizes)

  def states(self, server: types.ServerState) -> dict[str, Tree]:
    """Returns the states that `Summed.term` reads, by name."""
    return {name: server.states[name] for name in self.received}

  def zeros(
    self, start: Flat, states: dict[str, Tree], upload: types.Upload
  ) -> Totals:
    """Returns the sums over no clients.

    Args:
      start: shared parameters of the server.
      states: of `states`.
      upload: shapes of one upload.
    """
    averaged, running = self._parts(start)
    own = self._own(start, upload)
    by_size = averaged - own
    if self.rule is None or self.rule.fallback:
      by_size = averaged
    size, mine = self.by_size(), self.by_rule()
    return Totals(
      limits={n: self._limit(n, start[n]) for n in averaged},
      by_size={n: size.zero(start[n]) for n in sorted(by_size)},
      own={n: mine.zero(start[n]) for n in sorted(own)},
      peaks=dict.fromkeys(
        sorted(own) if self.rule and self.rule.exponential else (),
        jnp.float32(running_sum.LOWEST),
      ),
      drawn=jnp.int32(_NEVER),
      first={n: start[n] for n in running},
      messages={
        name: self._zero_message(name, states[name], upload)
        for name in self._sent(upload)
      },
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

    Args:
      totals: sums over the clients so far.
      start: shared parameters of the server.
      states: of `states`.
      upload: of one client.
      drawn: position of the client in the order of sampling.

    Returns:
      (sums, (the rest of the upload, its raw weights, whether a value is out of
      range)).
    """
    # The program of the client does not depend on what is done to its upload.
    upload = jax.lax.optimization_barrier(upload)
    change = {n: upload.shared[n] - start[n] for n in totals.limits}
    raw = self._raw(start, upload)
    terms = {
      name: self.received[name].term(
        states[name],
        upload.messages[name],
        contexts.ReceiveCtx(upload.index),
      )
      for name in totals.messages
    }
    finite = aggregation.valid_upload(upload)
    near = self._in_range(totals, change, raw, terms)
    valid = finite & near
    added = self._added(totals, change, raw, terms, upload, drawn)
    kept = types.Upload(
      upload.index,
      {},
      upload.num_examples,
      upload.num_steps,
      valid,
      {n: x for n, x in upload.messages.items() if n not in terms},
    )
    return trees.select(valid, added, totals), (kept, raw, finite & ~near)

  def merge(self, totals: Totals, axis: str) -> Totals:
    """Returns the sums over the clients of all devices along a mesh axis."""
    size, mine = self.by_size(), self.by_rule()
    peaks: Flat = jax.lax.pmax(totals.peaks, axis) if totals.peaks else {}
    own = totals.own
    if peaks:
      own = {n: x * jnp.exp(totals.peaks[n] - peaks[n]) for n, x in own.items()}
    drawn = jax.lax.pmin(totals.drawn, axis)
    chosen = (totals.drawn == drawn) & (drawn < _NEVER)
    return Totals(
      limits=totals.limits,
      by_size=size.merge(totals.by_size, axis),
      own=mine.merge(own, axis),
      peaks=peaks,
      drawn=drawn,
      first=running_sum.pick(totals.first, chosen, axis),
      messages={
        name: self.of_message(name).merge(tree, axis)
        for name, tree in totals.messages.items()
      },
    )

  def _parts(self, start: Flat) -> tuple[set[str], set[str]]:
    """Returns names of averaged parameters and of the first client's."""
    params, running = param_filter.trainable(start)
    if not self.models:
      return set(), set()
    if self.batch_stats_rule == 'average':
      return {*start}, set()
    first = running if self.batch_stats_rule == 'first_client' else ()
    return {*params}, {*first}

  def _own(self, start: Flat, upload: types.Upload) -> set[str]:
    """Returns the names of the averaged parameters that the rule weights."""
    averaged, _ = self._parts(start)
    raw = jax.eval_shape(self._raw, start, upload)
    if self.rule is None:
      return set()
    return averaged & raw.keys() if isinstance(raw, dict) else averaged

  def _raw(self, start: Flat, upload: types.Upload) -> Tree:
    if self.rule is None or self.rule.raw is None or not self.models:
      return ()
    ctx = contexts.UploadCtx.of(upload, start)
    return self.rule.raw(upload.messages.get(self.owner, ()), ctx)

  def _limit(self, name: str, value: Array) -> Array:
    params, _ = param_filter.trainable({name: value})
    headroom = HEADROOM if params else HEADROOM_STATISTICS
    return fixed_point.limit(value, headroom)

  def _sent(self, upload: types.Upload) -> list[str]:
    return [name for name in self.received if name in upload.messages]

  def _zero_message(self, name: str, state: Tree, upload: types.Upload) -> Tree:
    def term(state: Tree, message: Tree, index: Array) -> tuple[Array, Tree]:
      return self.received[name].term(
        state, message, contexts.ReceiveCtx(index)
      )

    shapes = jax.eval_shape(term, state, upload.messages[name], upload.index)
    values = shapes[1]
    return jax.tree.map(self.of_message(name).zero, values)

  def _in_range(
    self,
    totals: Totals,
    change: Flat,
    raw: Tree,
    terms: dict[str, tuple[Array, Tree]],
  ) -> Array:
    near = jnp.bool_(True)
    if totals.peaks:  # the sum of infinite exponents is not a number
      for leaf in jax.tree.leaves(raw):
        near &= jnp.isfinite(leaf)
    if not self.exact:
      return near
    for name, value in change.items():
      near &= (jnp.abs(value) <= totals.limits[name]).all()
    for name, (_, values) in terms.items():
      for leaf in jax.tree.leaves(values):
        near &= (jnp.abs(leaf) <= self.received[name].limit).all()
    return near

  def _added(
    self,
    totals: Totals,
    change: Flat,
    raw: Tree,
    terms: dict[str, tuple[Array, Tree]],
    upload: types.Upload,
    drawn: Array,
  ) -> Totals:
    size, mine, limits = self.by_size(), self.by_rule(), totals.limits
    by_size = {
      n: size.add(x, change[n], upload.num_examples, limits[n])
      for n, x in totals.by_size.items()
    }
    own: dict[str, Any] = {}
    peaks: dict[str, Array] = {}
    for name, total in totals.own.items():
      weight = of_leaf(raw, name)
      if totals.peaks:
        old = totals.peaks[name]
        peaks[name] = jnp.maximum(old, weight)
        total = total * jnp.exp(old - peaks[name])
        weight = jnp.exp(weight - peaks[name])
      own[name] = mine.add(total, change[name], weight, limits[name])
    first = {n: upload.shared[n] for n in totals.first}
    earlier = drawn < totals.drawn
    messages = {
      name: self._add_message(name, tree, *terms[name])
      for name, tree in totals.messages.items()
    }
    return Totals(
      limits,
      by_size,
      own,
      peaks,
      jnp.minimum(drawn, totals.drawn),
      trees.select(earlier, first, totals.first),
      messages,
    )

  def _add_message(
    self, name: str, total: Tree, weight: Array, values: Tree
  ) -> Tree:
    sums_, limit = self.of_message(name), self.received[name].limit

    def one(value: Array, so_far: Any) -> Any:
      return sums_.add(so_far, value, weight, jnp.float32(limit))

    return jax.tree.map(one, values, total)

  def by_size(self) -> Arithmetic:
    """Returns the sums of changes weighted by number of images."""
    return running_sum.make(self.exact, self.cohort, sums.by_size(self.sizes))

  def by_rule(self) -> Arithmetic:
    """Returns the sums of changes weighted by the rule."""
    bound = self.rule.bound if self.rule else None
    if bound is None:
      return running_sum.make(False, self.cohort, 1.0)
    return running_sum.make(self.exact, self.cohort, bound(self.sizes))

  def of_message(self, name: str) -> Arithmetic:
    """Returns the sums of the messages of a component."""
    bound = self.received[name].bound(self.sizes)
    return running_sum.make(self.exact, self.cohort, bound)


def make(
  components: Sequence[Component],
  aggregator: Component | None,
  batch_stats_rule: str,
  sizes: np.ndarray,
  exact: bool,
) -> Fold:
  """Returns the sums of a method that streams.

  Args:
    components: components of the method.
    aggregator: the component that fills `aggregation`, if any.
    batch_stats_rule: rule for running statistics.
    sizes: numbers of images of the K largest clients.
    exact: whether sums are in fixed point.
  """
  return Fold(
    aggregator.name if aggregator else '',
    aggregator.aggregation if aggregator else None,
    component.summed(components),
    batch_stats_rule,
    np.asarray(sizes, np.float64),
    exact,
  )
