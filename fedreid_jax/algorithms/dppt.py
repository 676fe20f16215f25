"""DPPT: a feature bank of identities rectifies the features of clients.

Jiang et al., "From laboratory to real world: a new benchmark towards
privacy-preserved visible-infrared person re-identification" (L2RW), section
3.3. Labels are global: identity `i` is the same person at every client.

In a round client m keeps the feature z of every training image, as computed
when the image was used. For an identity i with mean c_i of its features

  c^_i^m = mean of the K features nearest to c_i     (eq. 3-4; fewer: c_i)
  c_i^g  = mean of c^_i^m over the clients that have i               (eq. 5)
  L      = L_ori + lam mean_i (1 - cos(z_i, c^g_{y_i}))            (eq. 6-7)

with the server's centres of the last round, which have no gradient. An identity
without a centre does not enter the loss; in the first round no identity has
one.

Deviations from the paper: none in the default. Its cosine does not depend on
lengths, so `norm` changes the features that are averaged and the losses 'edu'
and 'mixed' of table 3. Between unit vectors these losses are at most 4/D, which
is almost zero; the rows of that table are assumed to use features that are not
normalised (`norm=False`). If only some clients take part in a round, the mean
of eq. 5 is over the clients with a valid upload, and an identity that none of
them has keeps its centre.

Deviations from the released code: there the feature bank contains features that
are not normalised (`norm=False`), K is 5 for cameras and 3 for entities (`k`),
the loss is 'mixed' (`loss`), and an identity that a client lacks enters the
mean of eq. 5 as a vector of zeros (`absent='zeros'`), which moves centres of
rare identities towards the origin: this does not change the angle, but changes
the squared distance. These four together are the released loss of cameras.
Entities never update the server's centres there, which remain zeros
(`target='zeros'`): the angle is then the constant 1, and the remaining loss is
half the mean square of the features.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import struct

from fedreid_jax import errors
from fedreid_jax.core import quotients
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import identity, metric
from fedreid_jax.method import sums
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  Participants,
  ServerHooks,
  broadcast_state,
)
from fedreid_jax.method.contexts import (
  LossCtx,
  ReceiveCtx,
  RoundCtx,
  RoundEndCtx,
  ServerInitCtx,
)
from fedreid_jax.method.rules import Given, Rule, numbers_own_labels
from fedreid_jax.method.sums import MessageSum

# Bound of the values of features in secure aggregation; with `norm` they are at
# most 1. A larger bound would round all of them more coarsely.
LIMIT = 2.0**10


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DPPT."""

  lam: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the rectification loss'
  ] = 1.0
  k: Annotated[
    int, Range(1), "number of nearest features in a client's centre"
  ] = 4
  loss: Annotated[metric.Kind, 'distance of the rectification loss'] = 'cos'
  norm: Annotated[bool, 'scale features to unit length first'] = True
  target: Annotated[
    Literal['global', 'zeros'],
    'centres that attract the features; zeros is the released code for '
    'entities',
  ] = 'global'
  absent: Annotated[
    Literal['skip', 'zeros'],
    'centres of identities that a client lacks: skipped in the mean of eq. '
    '5, or zeros as in the released code',
  ] = 'skip'


# All features are kept, because each one moves the centre, to which the nearest
# are wanted. One log has the images of the round as its capacity, 4 D bytes for
# each; a bank for each identity would need the worst case for each.
@struct.dataclass
class FeatureBank:
  """Features of a round."""

  features: Array  # in the order of insertion, `[M, D]`
  labels: Array  # identities, -1 for empty rows, int32 `[M]`
  num: Array  # inserted features, int32


@struct.dataclass
class Prototypes:
  """One feature for each identity."""

  features: Array  # zeros for an identity that has none, `[C, D]`
  present: Array  # whether each identity has a feature, bool `[C]`


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  c = given.config
  yield (
    numbers_own_labels(c) or c.data.labels == 'max',
    'data.labels',
    f'{given.name} needs the same label for a person at all clients',
    "set data.client_split to 'camera_independent' or "
    "'entity_independent', or data.labels to 'global'",
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  lam, k, loss = options.lam, options.k, options.loss
  norm = options.norm

  def represent(embedding: Array) -> Array:
    return metric.unit(embedding) if norm else embedding

  def rectify(
    variables: Flat, state: FeatureBank, ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    known, batch = ctx.message, ctx.batch
    value = metric.rectification(
      represent(ctx.outputs.embedding),
      batch.labels,
      batch.valid,
      known.features,
      known.present,
      loss,
    )
    share = identity.masked_mean(
      known.present[batch.labels].astype(value.dtype), batch.valid
    )
    return lam * value, {'rectification': value, 'known': share}

  def fill_bank(state: FeatureBank, ctx: LossCtx) -> FeatureBank:
    # The feature of the training step, normalised by the moments of its batch
    # like the features that the loss compares with the centres.
    z = represent(ctx.outputs.embedding)
    return insert(state, z, ctx.batch.labels, ctx.batch.valid)

  def nearest_features(
    state: FeatureBank, ctx: RoundEndCtx
  ) -> tuple[tuple[()], Prototypes]:
    return (), nearest_means(state, len(ctx.message.present), k)

  return Component(
    'dppt',
    client=ClientHooks(
      round_start=_start_bank,
      loss=rectify,
      post_step=fill_bank,
      round_end=nearest_features,
    ),
    server=ServerHooks(
      init=_no_centres,
      receive=MessageSum(
        _add_centres,
        functools.partial(_mean_centres, options),
        sums.by_count,
        LIMIT,
      ),
      message=broadcast_state,
    ),
    bind=check,
    released='it sends mean features of single persons',
  )


def _add_centres(
  state: Prototypes, message: Prototypes, ctx: ReceiveCtx
) -> tuple[Array, Prototypes]:
  """The weight of one client and its terms in eq. 5."""
  del state, ctx
  return jnp.float32(1.0), terms(message)


def _mean_centres(
  options: Options,
  state: Prototypes,
  totals: Prototypes,
  valid: Array,
  ctx: ReceiveCtx,
) -> Prototypes:
  del ctx
  everyone = valid.sum() if options.absent == 'zeros' else None
  new = average_centres(state, totals, everyone)
  if options.target == 'zeros':
    return Prototypes(state.features, new.present)
  return new


def _start_bank(state: tuple[()], ctx: RoundCtx) -> FeatureBank:
  del state
  return empty_bank(ctx.max_images, ctx.message.features.shape[1])


def _no_centres(ctx: ServerInitCtx) -> Prototypes:
  outputs = ctx.outputs
  return no_prototypes(outputs.logits.shape[1], outputs.embedding.shape[1])


def check(participants: Participants) -> None:
  """Checks that all clients have the same label space.

  Raises:
    DataError: if the numbers of identities of two clients differ.
  """
  first = participants.clients[0]
  for client in participants.clients:
    if client.num_identities != first.num_identities:
      number = errors.counted(client.num_identities, 'identity', 'identities')
      raise errors.DataError(
        f'{number}, but {first.name} has '
        f'{first.num_identities}: the same label must be the same person',
        f'client {client.name}',
        "number all clients' identities together (data.client_split)",
      )


def empty_bank(capacity: int, num_features: int) -> FeatureBank:
  """Returns an empty bank for `capacity` features."""
  return FeatureBank(
    jnp.zeros((capacity, num_features), jnp.float32),
    jnp.full(capacity, -1, jnp.int32),
    jnp.int32(0),
  )


def insert(
  bank: FeatureBank, features: Array, labels: Array, valid: Array
) -> FeatureBank:
  """Adds the valid rows of a batch, features `[B, D]`, to the bank.

  Rows beyond the capacity are dropped.
  """
  capacity = bank.labels.shape[0]
  # Rows at the capacity are out of range and dropped.
  rows = jnp.where(valid, bank.num + jnp.cumsum(valid) - 1, capacity)
  return FeatureBank(
    bank.features.at[rows].set(features, mode='drop'),
    bank.labels.at[rows].set(labels, mode='drop'),
    bank.num + valid.sum(dtype=jnp.int32),
  )


def no_prototypes(num_identities: int, num_features: int) -> Prototypes:
  """Returns prototypes for which no identity has a feature."""
  return Prototypes(
    jnp.zeros((num_identities, num_features), jnp.float32),
    jnp.zeros(num_identities, bool),
  )


def nearest_means(bank: FeatureBank, num_identities: int, k: int) -> Prototypes:
  """Averages the `k` features of each identity nearest to their mean.

  Jiang et al., L2RW, eq. 3-4, with Euclidean distances; all features of an
  identity with fewer than `k` are averaged. Ties are broken by order.
  """
  real = bank.labels >= 0
  owners = jnp.where(real, bank.labels, num_identities)
  own = jnp.minimum(owners, num_identities - 1)

  # Rows of segment `C` are dropped, which avoids a masked copy of the bank.
  def total(values: Array, chosen: Array) -> Array:
    segment = jnp.where(chosen, owners, num_identities)
    return jax.ops.segment_sum(values, segment, num_identities)

  count = total(jnp.ones_like(owners), real)
  sums = total(bank.features, real)
  mean = quotients.divide(sums, jnp.maximum(count, 1)[:, None])
  away = jnp.square(bank.features - mean[own]).sum(axis=1)
  # Sorted by identity and then by distance; the rank of a feature is its place
  # behind the first of its identity. Empty rows come last.
  order = jnp.lexsort((away, owners))
  place = jnp.zeros_like(owners).at[order].set(jnp.arange(len(owners)))
  rank = place - (jnp.cumsum(count) - count)[own]
  sums = total(bank.features, rank < k)
  near = quotients.divide(sums, jnp.clip(count, 1, k)[:, None])
  return Prototypes(near, count > 0)


def terms(message: Prototypes) -> Prototypes:
  """The terms of one client for `average_centres`; `present` is a count."""
  present = message.present
  features = jnp.where(present[:, None], message.features, 0.0)
  return Prototypes(features, present.astype(jnp.float32))


def average_centres(
  old: Prototypes, totals: Prototypes, everyone: Array | None = None
) -> Prototypes:
  """Averages an identity's centres over the clients that have one.

  Jiang et al., L2RW, eq. 5, over the valid uploads; an identity without a
  feature in any of them keeps its old centre. With `everyone`, the number of
  valid uploads, a client without the identity contributes a centre of zeros,
  as in the released code.
  """
  fresh = totals.present > 0
  num = totals.present if everyone is None else everyone
  mean = totals.features / jnp.atleast_1d(jnp.maximum(num, 1))[:, None]
  return Prototypes(
    jnp.where(fresh[:, None], mean, old.features), fresh | old.present
  )
