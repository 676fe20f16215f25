"""Secure aggregation: the server receives the sum of the uploads and no upload.

Bonawitz et al., Practical secure aggregation for privacy-preserving machine
learning, CCS 2017. With D_k = w_k - w^t of the shared parameters, weights
0 <= a_k <= 1 and a scale s that is a power of two, client k computes

  x_k = (rint(s a_k clip(D_k, -B, B)), rint(s' a_k))  modulo 2^b

and sends x_k with masks that cancel in the sum over the set U of clients whose
messages arrive (`statistics.secure_sum`). The server computes W = sum_U x_k
modulo 2^b, and

  w = w^t + (W / s) / (sum_U a_k),

where the last entry of W is s' sum_U a_k. a_k is n_k / n_max, which gives
the weights of FedAvg, or the weight of another component over its largest
value. The numbers in the divisor of another rule (FedNova) replace the last
entry, and messages that the server needs as sums (SCAFFOLD, DPPT) are further
entries with separate limits (`round.server.masked`).

The scale is the largest for which K clients at +-B do not overflow. An upload
is lost with the probability `dropout` after it has been masked, or if it is not
finite; then the server learns seeds that remove its part of the masks. With
fewer uploads than a threshold, 2/3 of the clients of the round and at least
three, the round is aborted: it has no upload, aggregation leaves the model as
it is, and `secagg_aborted` of the round is 1.

The arithmetic is simulated exactly: the masked sum has the bits of the sum of
the x_k. Not simulated are key agreement, signatures, encryption, the sharing of
seeds, a server that lies, and time. All clients but one can compute the upload
of that one from the sum. Only DP-FedAvg or DP-SGD adds differential privacy. A
component that needs single uploads is refused.

With DP-FedAvg, |x_k / s| is at most the clip plus the norm of the rounding,
sqrt(d) / (2 s) for d parameters. The noise on every integer of W is an exact
sample of the discrete Gaussian (`statistics.discrete_gaussian`) with
sigma = rint_up(s z (clip + rounding)), so that attacks on the rounding of
floating-point noise do not apply. An aborted round has neither noise nor sum.

Deviations from the paper: seeds are random keys of the simulation, and a client
that is lost has the state from before the round again. Deviations from released
code: no implementation is taken as the reference.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import secure_sum
from fedreid_jax.algorithms.statistics.secure_sum import Format
from fedreid_jax.core import prng, trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Tree
from fedreid_jax.method.component import (
  MODEL,
  Component,
  Participants,
  ServerHooks,
  Summation,
  Transport,
)
from fedreid_jax.method.contexts import ServerCtx, ServerInitCtx
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.method.sums import Weighted

NOTICE = (
  'secure aggregation is simulated; '
  'docs/methods/secagg.md says what the simulation leaves out'
)
LOST, MASKS, ROUNDING, NOISE = 0, 1, 2, 3  # uses of the key of a round
# Clients of a round, because the time of the masks is K^2 times a model.
MOST = 64
CLIPPED = 1e-3  # share of the values above which a run warns
FINEST = 16.0  # least scale of a weight, below which sums are too coarse


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
  n_max: Annotated[
    int,
    Range(0),
    'images at which the weight of a client is full, 0 for those of the '
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
  """The report of a round, float32."""

  survivors: Array  # number of uploads that arrived
  aborted: Array  # 1 if these were too few, else 0
  clipped: Array  # share of the values beyond the bound


class _Setting(NamedTuple):
  """The options and the quantities that depend on the clients of a run."""

  options: Options
  form: Format
  uids: np.ndarray  # hashes of the names of all clients, uint32 `[N]`

  def limit(self, name: str) -> float:
    """The limit of the change of a parameter or running statistic."""
    trained = name.startswith('params/')
    return self.options.bound if trained else self.options.bound_batch_stats

  def keys(self, ctx: ServerCtx, use: int) -> Array:
    """Returns one key for each client, `[K]`."""
    key = jax.random.fold_in(ctx.key, use)

    def one(uid: Array) -> Array:
      # By name and not by place, so that cohorts and devices do not change it.
      return jax.random.fold_in(key, uid)

    return jax.vmap(one)(self.uids_of(ctx))

  def uids_of(self, ctx: ServerCtx) -> Array:
    """The hash of each client's name, uint32 `[K]`."""
    # Padded places have the index -1; any client stands in for them.
    return jnp.asarray(self.uids)[jnp.maximum(ctx.index, 0)]

  def survivors(self, ctx: ServerCtx) -> tuple[Array, Array]:
    """Draws which uploads arrive, bool `[K]`, and whether they are enough."""
    drawn = jax.vmap(jax.random.uniform)(self.keys(ctx, LOST))
    arrived = ctx.valid & (drawn >= self.options.dropout)
    # The threshold counts the clients that began, also those lost since.
    clients = (ctx.index >= 0).sum()
    wanted = secure_sum.needed(clients, self.options.threshold)
    return arrived, arrived.sum() >= wanted


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield (
    given.config.batch_stats_rule == 'first_client',
    'batch_stats_rule',
    f'{given.name!r} does not know the running statistics of one client',
    "set it to 'average' or 'keep_server'",
  )


def make(options: Options = Options()) -> Component:
  """Builds the component; the clients of a run determine its scale."""

  def bind(participants: Participants) -> Component:
    _check(options, participants.cohort)
    clients = participants.clients
    largest = options.n_max or max(client.num_images for client in clients)
    uids = [prng.client_uid(client.name) for client in clients]
    return _component(options, participants.cohort, uids, largest)

  unbound = _component(options, 3, [0], options.n_max or math.inf)
  return unbound._replace(bind=bind)


def _check(options: Options, places: int) -> None:
  """Refuses cohorts in which every round would be aborted, or too large."""
  fewest = max(options.threshold, 3)
  if places < fewest:
    raise errors.ConfigError(
      f'{errors.counted(places, "client")} in a round, but secure aggregation '
      f'needs {fewest} uploads',
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
  if secure_sum.scale(1.0, places, options.bits) < FINEST:
    raise errors.ConfigError(
      f'{options.bits} bits are too few for the sum of {places} weights',
      'secagg.bits',
      'raise it, or lower fraction',
    )


def _component(
  options: Options, places: int, uids: Sequence[int], largest: float
) -> Component:
  """The component for `places` clients in a round."""
  form = Format(options.bits, places)
  setting = _Setting(options, form, np.array(uids, np.uint32))

  def add(terms: Tree, ctx: ServerCtx) -> tuple[State, Tree, Array]:
    return _add(setting, terms, ctx)

  def init(ctx: ServerInitCtx) -> State:
    del ctx
    return State(*[jnp.float32(0.0)] * 3)

  def size(content: str, tree: Tree) -> int:
    if content == MODEL:
      return form.num_bytes(tree, options.masks)
    values = sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
    return math.ceil(values * options.bits / 8)

  return Component(
    'secagg',
    transport=Transport(size=size),
    summation=Summation(add, setting.limit, float(largest), form.rounding),
    server=ServerHooks(init=init, metrics=State._asdict),
    properties=('draws_noise',),
    notice=NOTICE,
    warn=_warn,
  )


def _warn(metrics: dict[str, float]) -> str:
  if metrics['clipped'] > CLIPPED:
    return (
      f'more than {CLIPPED:.1%} of the values of a round are beyond '
      'secagg.bound, secagg.bound_batch_stats or the limit of a message and '
      'were clipped'
    )
  return ''


def _is_weighted(tree: Tree) -> bool:
  return isinstance(tree, Weighted)


def _add(
  setting: _Setting, terms: Tree, ctx: ServerCtx
) -> tuple[State, Tree, Array]:
  """Returns (report, sums, mask of the uploads in them)."""
  form = setting.form
  flat: tuple[list[Weighted], Any] = jax.tree.flatten(
    terms, is_leaf=_is_weighted
  )
  given, structure = flat
  arrived, enough = setting.survivors(ctx)
  # Sorted by client, because the place of an upload depends on the number of
  # devices and the roundings and masks must not; padding goes last and is cut.
  last = jnp.iinfo(ctx.index.dtype).max
  order = jnp.argsort(jnp.where(ctx.index < 0, last, ctx.index))[: form.places]
  own = [(x.weight, x.values) for x in given]
  rows, valid, keys = trees.rows(
    (own, ctx.valid, setting.keys(ctx, ROUNDING)), order
  )
  ordered = [
    term._replace(weight=weight, values=values)
    for (weight, values), term in zip(rows, given, strict=True)
  ]
  roster = secure_sum.Roster(
    jax.random.fold_in(ctx.key, MASKS),
    setting.uids_of(ctx)[order],
    ctx.index[order] >= 0,
    form.bits,
  )
  vectors = secure_sum.encode(form, ordered, valid, keys)
  total = secure_sum.add(roster, arrived[order], vectors, setting.options.masks)
  noise = jax.random.fold_in(ctx.key, NOISE)
  # With too few uploads the sums are zero and the mask is False.
  sums = secure_sum.decode(form, total, ordered, noise, enough)
  state = State(
    arrived.sum().astype(jnp.float32),
    1.0 - enough.astype(jnp.float32),
    secure_sum.clipped(given, ctx.valid),
  )
  return state, jax.tree.unflatten(structure, sums), arrived & enough
