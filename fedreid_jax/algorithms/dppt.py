"""DPPT: a memory of identities that rectifies where features go.

Jiang et al., "From laboratory to real world: a new benchmark towards
privacy-preserved visible-infrared person re-identification" (L2RW), section
3.3. Labels are global: every client's identity `i` is the same person.

In a round client m keeps the feature z of every image it trains on, as it was
when the image was seen. For an identity i with mean c_i of its features

  c^_i^m = mean of the K features nearest to c_i     (eq. 3-4; fewer: c_i)
  c_i^g  = mean of c^_i^m over the clients that have i               (eq. 5)
  L      = L_ori + lam mean_i (1 - cos(z_i, c^g_{y_i}))            (eq. 6-7)

with the server's centres of the last round, constants. The features are those
of the training batches, normalised by the batches' own moments like those that
the loss compares with the centres. An identity without a centre is left out of
the loss, and so is every identity in the first round.

Deviations from the paper: none in the default. Its cosine needs no lengths, so
`norm` matters to what is averaged and to the losses 'edu' and 'mixed' of table
3: between unit vectors these are at most 4/D, next to nothing; the rows of that
table are thought to be of features as they are (`norm=False`). Where only some
clients take part in a round, the mean of eq. 5 is over those whose upload
arrived, and an identity none of them has keeps its centre.

Deviations from the released code: there the memory holds features as they are
(`norm=False`), K is 5 for cameras and 3 for entities (`k`), the loss is 'mixed'
(`loss`), and an identity that a client lacks enters the mean of eq. 5 as a
vector of zeros (`absent='zeros'`), which draws centres of rare identities to
the origin: the angle does not see it, the squared distance does. These four
together are the released loss of cameras. Entities never update the server's
centres there, which stay zeros (`target='zeros'`): the angle is then the
constant 1, and what is left is half the mean square of the features.
"""

import dataclasses
from typing import Annotated, Literal

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import prototypes
from fedreid_jax.core.component import (
  ClientHooks,
  Component,
  ComponentInfo,
  Participants,
  ServerHooks,
)
from fedreid_jax.core.contexts import LossCtx, ReceiveCtx, RoundEndCtx
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import identity, rectification, similarity


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DPPT."""

  lam: Annotated[float, Range(0), 'weight of the rectification loss'] = 1.0
  k: Annotated[
    int, Range(1), "nearest features of an identity that make a client's centre"
  ] = 4
  loss: Annotated[rectification.Kind, 'distance of the rectification loss'] = (
    'cos'
  )
  norm: Annotated[bool, 'scale features to length one first'] = True
  target: Annotated[
    Literal['global', 'zeros'],
    'centres that features are drawn to; zeros as released for entities',
  ] = 'global'
  absent: Annotated[
    Literal['skip', 'zeros'],
    'centres of identities that a client lacks: skipped in the mean of eq. '
    '5, or zeros as released',
  ] = 'skip'


def make(options: Options = Options()) -> Component:
  """Builds the component.

  A client remembers every image of its round while it trains, 4 D bytes each.
  """
  lam, k, loss = options.lam, options.k, options.loss
  norm, target, absent = options.norm, options.target, options.absent

  def represent(embedding: Array) -> Array:
    return similarity.unit(embedding) if norm else embedding

  def rectify(
    variables: Flat, state: prototypes.FeatureBank, ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    known, batch = ctx.message, ctx.batch
    value = rectification.rectification(
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

  def post_step(
    state: prototypes.FeatureBank, ctx: LossCtx
  ) -> prototypes.FeatureBank:
    z = represent(ctx.outputs.embedding)
    return prototypes.insert(state, z, ctx.batch.labels, ctx.batch.valid)

  def round_end(
    state: prototypes.FeatureBank, ctx: RoundEndCtx
  ) -> tuple[tuple[()], prototypes.Prototypes]:
    return (), prototypes.nearest_means(state, len(ctx.message.present), k)

  def receive(
    state: prototypes.Prototypes,
    messages: prototypes.Prototypes,
    valid: Array,
    ctx: ReceiveCtx,
  ) -> prototypes.Prototypes:
    del ctx
    new = prototypes.merge(
      state, messages, valid, count_absent=absent == 'zeros'
    )
    if target == 'zeros':
      return prototypes.Prototypes(state.features, new.present)
    return new

  return Component(
    'dppt',
    client=ClientHooks(
      round_start=lambda state, ctx: prototypes.empty(
        ctx.max_images, ctx.message.features.shape[1]
      ),
      loss=rectify,
      post_step=post_step,
      round_end=round_end,
    ),
    server=ServerHooks(
      init=lambda ctx: prototypes.no_prototypes(
        ctx.outputs.logits.shape[1], ctx.outputs.embedding.shape[1]
      ),
      receive=receive,
      message=lambda state: state,
    ),
    info=ComponentInfo(check=check),
  )


def check(participants: Participants) -> None:
  """Refuses clients of different label spaces.

  Raises:
    DataError: naming two clients whose numbers of identities differ.
  """
  first = participants.clients[0]
  for client in participants.clients:
    if client.num_identities != first.num_identities:
      raise errors.DataError(
        f'{client.num_identities} identities where {first.name} has '
        f'{first.num_identities}: the same number must be the same person',
        f'client {client.name}',
        "number all clients' identities together, as data.client_split says",
      )
