"""Secure aggregation: the server receives the sum of the uploads and no upload.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine
learning, CCS 2017. With D_k = w_k - w^t of the shared parameters, weights
0 <= a_k <= 1 and a scale s that is a power of two, client k computes

  x_k = (rint(s a_k clip(D_k, -B, B)), rint(s' a_k))  modulo 2^b

and sends x_k with masks (`statistics.masking`) that cancel in the sum over the
set U of clients whose message arrives. The server computes W = sum_U x_k
modulo 2^b, and

  w = w^t + (W / s) / (sum_U a_k),

where the last entry of W is s' sum_U a_k. a_k is n_k / n_max, so that the
weights are those of FedAvg, or 1. The scale is the largest for which K clients
at +-B do not overflow (`statistics.ring`). An upload is lost with the
probability `dropout` after it has been masked, or if it is not finite; then the
server learns seeds that remove its part of the masks. With fewer uploads than a
threshold, 2/3 of the clients of the round and at least three, the round is
aborted: the model stays, and `secagg_aborted` of the round is 1. Other
components of the server then see an update of zero.

The arithmetic is simulated exactly: the masked sum has the bits of the sum of
the x_k. Not simulated are key agreement, signatures, encryption, the sharing of
seeds, a server that lies, and time. All clients but one can compute the upload
of that one from the sum. There is no differential privacy.

A component that needs single uploads is refused: one that clusters or
aggregates, receives messages, compresses, or lets attackers agree. In this
version that includes CDW, FedNova, SCAFFOLD, DPPT, FedBuff and DP-FedAvg, of
which sums would suffice.

Deviations from the paper: seeds are random keys of the simulation, and a client
that is lost keeps what it trained. Deviations from released code: no
implementation is taken as the reference.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import masking, secure_sum
from fedreid_jax.algorithms.statistics.secure_sum import Format
from fedreid_jax.core import aggregation, prng, trees
from fedreid_jax.core.component import (
  Aggregation,
  Component,
  ComponentInfo,
  Participants,
  ServerHooks,
  Transport,
)
from fedreid_jax.core.contexts import AggregationCtx, ServerInitCtx
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat

NOTICE = (
  'secure aggregation is simulated, and its masks follow from the seed; '
  'docs/methods/secagg.md says what the simulation leaves out'
)
LOST, MASKS, ROUNDING = 0, 1, 2  # uses of the key of a round
MOST = 64  # clients of a round: the masks take K^2 times the size of a model
CLIPPED = 1e-3  # share of the values above which a run warns
NEED_UPLOADS = (
  'clustering',
  'server.receive',
  'transport.collude',
  'transport.size',
  'info.needs_uploads',
)


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of secure aggregation."""

  bits: Annotated[int, Range(16, 32), 'bits of a number that is sent'] = 32
  bound: Annotated[
    float, Range(1e-9), 'largest change of a parameter in a round'
  ] = 1.0
  bound_batch_stats: Annotated[
    float, Range(1e-9), 'largest change of a running statistic in a round'
  ] = 16.0
  weights: Annotated[
    Literal['size', 'equal'], 'weights by number of images, or equal ones'
  ] = 'size'
  n_max: Annotated[
    int,
    Range(0),
    'size: images at which the weight of a client is full, 0 for those of the '
    'largest client',
  ] = 0
  dropout: Annotated[
    float, Range(0, 0.999), 'probability that an upload is lost'
  ] = 0.0
  threshold: Annotated[
    int,
    Range(0),
    'fewest uploads of a round, 0 for 2/3 of its clients; three at least',
  ] = 0
  masks: Annotated[
    bool, 'add the masks; without them the sums have the same bits'
  ] = True


class State(NamedTuple):
  """What is reported of a round, float32.

  Attributes:
    survivors: number of uploads that arrived.
    aborted: 1 if these were too few, else 0.
    clipped: share of the values beyond the bound.
  """

  survivors: Array
  aborted: Array
  clipped: Array


class _Setting(NamedTuple):
  """The options, and what depends on the clients of a run.

  Attributes:
    options: of the component.
    form: of the integers.
    uids: hashes of the names of all clients, uint32 `[N]`.
    largest: number of images at which a weight is full.
  """

  options: Options
  form: Format
  uids: np.ndarray
  largest: float

  def shares(self, ctx: AggregationCtx) -> Array:
    """Returns a_k of each upload, float32 `[K]`."""
    if self.options.weights == 'equal':
      return jnp.ones_like(ctx.num_examples)
    # XLA may divide by a constant so; the bits then depend on the machine.
    return jnp.minimum(ctx.num_examples * np.float32(1 / self.largest), 1.0)

  def keys(self, ctx: AggregationCtx, use: int) -> Array:
    """Returns a key of each client, `[K]`."""
    key = jax.random.fold_in(ctx.key, use)

    def one(uid: Array) -> Array:
      return jax.random.fold_in(key, uid)

    return jax.vmap(one)(self.uids_of(ctx))

  def uids_of(self, ctx: AggregationCtx) -> Array:
    """Returns the hash of each client's name, uint32 `[K]`."""
    return jnp.asarray(self.uids)[jnp.maximum(ctx.index, 0)]

  def arrived(self, ctx: AggregationCtx) -> Array:
    """Returns whether each upload arrives, bool `[K]`."""
    drawn = jax.vmap(jax.random.uniform)(self.keys(ctx, LOST))
    return ctx.valid & (drawn >= self.options.dropout)

  def enough(self, ctx: AggregationCtx) -> Array:
    """Returns whether a round is not aborted, bool."""
    clients = (ctx.index >= 0).sum()
    wanted = masking.needed(clients, self.options.threshold)
    return self.arrived(ctx).sum() >= wanted


def make(options: Options = Options()) -> Component:
  """Builds the component; the clients of a run determine its scale."""

  def bind(participants: Participants) -> Component:
    clients = participants.clients
    largest = options.n_max or max(client.num_images for client in clients)
    uids = [prng.client_uid(client.name) for client in clients]
    return _component(options, participants.cohort, uids, largest)

  def check(participants: Participants) -> None:
    _check(options, participants.cohort)

  unbound = _component(options, 3, [0], 1)
  info = unbound.info._replace(check=check, bind=bind)
  return unbound._replace(info=info)


def _check(options: Options, places: int) -> None:
  """Refuses cohorts in which every round would be aborted, or too large."""
  fewest = max(options.threshold, 3)
  if places < fewest:
    raise errors.ConfigError(
      f'{places} clients in a round, but secure aggregation needs {fewest} '
      'uploads',
      'fraction',
      'raise it, or use more clients',
    )
  if options.masks and places > MOST:
    raise errors.ConfigError(
      f'the masks of {places} clients in a round take {places}^2 times the '
      f'size of the model; at most {MOST} clients are simulated',
      'secagg.masks',
      'set it to False, which gives the same models, or lower fraction',
    )


def _component(
  options: Options, places: int, uids: Sequence[int], largest: int
) -> Component:
  """Returns the component for so many clients in a round."""
  form = Format(options.bits, places, options.bound, options.bound_batch_stats)
  setting = _Setting(options, form, np.array(uids, np.uint32), float(largest))

  def weights(messages: Any, ctx: AggregationCtx) -> Array:
    """Returns the weights that the log shows; `combine` does not read them."""
    del messages
    arrived = setting.arrived(ctx)
    counted = jnp.where(arrived.any(), arrived, ctx.members[0])
    return aggregation.normalise(setting.shares(ctx), counted[None])

  def combine(models: Flat, ctx: AggregationCtx) -> Flat:
    del models
    return _combine(setting, ctx)

  def init(ctx: ServerInitCtx) -> State:
    del ctx
    return State(*[jnp.float32(0.0)] * 3)

  def update(
    state: State, models: Flat, ctx: AggregationCtx
  ) -> tuple[State, Flat]:
    del state
    arrived, aborted = setting.arrived(ctx), ~setting.enough(ctx)
    return State(
      arrived.sum().astype(jnp.float32),
      aborted.astype(jnp.float32),
      secure_sum.clipped(form, _changes(ctx), ctx.valid),
    ), models

  def size(shared: Flat) -> int:
    return form.num_bytes(shared, options.masks)

  return Component(
    'secagg',
    transport=Transport(size=size),
    aggregation=Aggregation(weights, combine=combine),
    server=ServerHooks(init=init, update=update, metrics=State._asdict),
    info=ComponentInfo(notice=NOTICE, conflicts=NEED_UPLOADS, warn=_warn),
  )


def _warn(metrics: dict[str, float]) -> str:
  if metrics['clipped'] > CLIPPED:
    return (
      f'more than {CLIPPED:.1%} of the values of a round are beyond '
      'secagg.bound or secagg.bound_batch_stats and were clipped'
    )
  return ''


def _changes(ctx: AggregationCtx) -> Flat:
  return {name: x - ctx.start[name] for name, x in ctx.uploaded.items()}


def _combine(setting: _Setting, ctx: AggregationCtx) -> Flat:
  """Returns the model `[1, ...]` of the sum that the server can compute."""
  form = setting.form
  # The same clients at the same places on any number of devices.
  last = jnp.iinfo(ctx.index.dtype).max
  order = jnp.argsort(jnp.where(ctx.index < 0, last, ctx.index))[: form.places]
  changes, shares, valid, keys = trees.rows(
    (
      _changes(ctx),
      setting.shares(ctx),
      ctx.valid,
      setting.keys(ctx, ROUNDING),
    ),
    order,
  )
  roster = masking.Roster(
    jax.random.fold_in(ctx.key, MASKS),
    setting.uids_of(ctx)[order],
    ctx.index[order] >= 0,
    form.bits,
  )
  vectors = secure_sum.encode(form, changes, shares, valid, keys)
  arrived = setting.arrived(ctx)[order]
  total = secure_sum.add(roster, arrived, vectors, setting.options.masks)
  mean, _ = secure_sum.decode_mean(form, total, ctx.start)
  enough = setting.enough(ctx)
  return {
    name: jnp.where(enough, old + mean[name], old).astype(old.dtype)
    for name, old in ctx.start.items()
  }
