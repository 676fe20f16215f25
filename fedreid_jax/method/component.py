"""Components: the interface between the engine and federated methods.

A federated method is a composition of components. A component is a set of
hooks, which are functions that the engine calls at fixed points of a round. A
hook receives only the state and the messages of its component. Its arguments
are in the order (state, inputs, context), without those that it does not need.
Client hooks receive ONE client: no array has a leading axis for clients.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat, Metrics, Tree
from fedreid_jax.method import contexts
from fedreid_jax.method.accounting import Released
from fedreid_jax.method.contexts import (
  Cluster,
  EndRound,
  Gradient,
  InitClient,
  InitServer,
  Loss,
  Message,
  PostStep,
  PreStep,
  Receive,
  RoundState,
  StartRound,
  State,
  Up,
  Update,
)
from fedreid_jax.method.sums import Gather, MessageSum, Sum

MODEL = 'model'  # the shared parameters, where contents of uploads have names
COARSEST = 1 / 16  # largest rounding error of a value in a `Summation`


def _no_state(key: Array, variables: Flat, /) -> State:
  del key, variables
  return ()


def _same(state: State, ctx: contexts.RoundCtx, /) -> RoundState:
  del ctx
  return state


def _no_message(
  state: RoundState, ctx: contexts.RoundEndCtx, /
) -> tuple[State, Message]:
  del ctx
  return state, ()


class DataPass(NamedTuple):
  """A fold over all images of a client after training.

  Images have the test transform. The trained model computes the features in
  evaluation mode, with moments of batch normalisation that are re-estimated at
  its weights on the same images (`method.batch_stats`).

  Attributes:
    init: `(Outputs with shapes, RoundCtx) -> accumulator`.
    update: `(accumulator, Outputs, Batch) -> accumulator`.
    every_round: whether it runs after the training of each round; otherwise it
      runs before round 0 for a component that is `before_first_round`, and
      `ctx.data_pass` means nothing in later rounds.
  """

  init: Callable[[types.Outputs, contexts.RoundCtx], Tree]
  update: Callable[[Tree, types.Outputs, types.Batch], Tree]
  every_round: bool = True


class ClientHooks(NamedTuple):
  """The part of a component that runs at every client.

  The hooks of all components are applied, and their losses are summed.

  Attributes:
    init: `(key, variables) -> State`, kept at the client between rounds.
    round_start: `(State, RoundCtx) -> RoundState`.
    pre_step: `(RoundState, StepCtx) -> (RoundState, Aux)`; Aux is `ctx.aux` in
      the `loss` and `post_step` of this component.
    loss: `(variables, RoundState, LossCtx) -> (loss, metrics)`.
    gradient: `(parameters, GradientCtx) -> (gradients, metrics)`, which
      replaces the gradient of the mean loss of a batch; only one component has
      it. The optimiser adds the weight decay. All other components with a loss
      must have the property `separable`, no `pre_step`, no `post_step`, and a
      `data_pass` only if `Component.released` declares noise.
    post_step: `(RoundState, LossCtx) -> RoundState`.
    data_pass: a fold over all images after training; its result is
      `ctx.data_pass` in `round_end`.
    round_end: `(RoundState, RoundEndCtx) -> (State, Message)`.
  """

  init: InitClient = _no_state
  round_start: StartRound = _same
  pre_step: PreStep | None = None
  loss: Loss | None = None
  gradient: Gradient | None = None
  post_step: PostStep | None = None
  data_pass: DataPass | None = None
  round_end: EndRound = _no_message


def _no_server_state(ctx: contexts.ServerInitCtx, /) -> State:
  del ctx
  return ()


class ServerHooks(NamedTuple):
  """The part of a component that runs at the server.

  The hooks are applied in the order of the components.

  Attributes:
    init: `(ServerInitCtx) -> State`.
    receive: `(State, messages [K], valid bool [K], ReceiveCtx) -> State`, after
      every round and after the data pass before round 0. It is a
      `sums.MessageSum` if sums of the messages suffice.
    update: `(State, models [G, ...], AggregationCtx) -> (State, models)`.
    message: `(State) -> Message`, broadcast to every client; it is
      `ctx.message` in the client hooks of this component.
    metrics: `(State) -> metrics` of the round, float32, after `update`; they
      are recorded with the prefix of the component.
    judge: `(State, metrics, number of rounds that are done) -> State`, after
      each evaluation of a run, the one before training included. The metrics
      are means over the tests on held-out persons of the clients
      (`evaluation.validation`), which a run with this hook must have; no hook
      receives a result on a target.
  """

  init: InitServer = _no_server_state
  receive: Receive | None = None
  update: Update | None = None
  message: Callable[[State], Message] | None = None
  metrics: Callable[[State], Metrics] | None = None
  judge: contexts.Judge | None = None


def broadcast_state(state: State, /) -> Message:
  """Returns the whole state, as a `ServerHooks.message`."""
  return state


def replace_rows(
  state: Array, messages: Array, valid: Array, ctx: contexts.ReceiveCtx, /
) -> Array:
  """Replaces the clients' rows of a state `[N, ...]`, as a `receive` hook."""
  # A row behind the last is dropped, so that a lost upload keeps the old one.
  rows = jnp.where(valid, ctx.index, state.shape[0])
  return state.at[rows].set(messages, mode='drop')


def _no_transport_state(shared: Flat, /) -> State:
  del shared
  return ()


class Transport(NamedTuple):
  """Transformations of uploads and broadcasts on the client's device.

  Attributes:
    up: `(State, Upload, received Broadcast, key) -> (State, Upload)`.
    down: `(Broadcast, key) -> Broadcast`.
    collude: `(uploads [K]) -> uploads`, which simulates clients that know each
      other's uploads. It runs at the server, after every `up`.
    init: `(shared parameters) -> State`, kept at the client for `up`. If an
      upload is lost, the client keeps the state before the round.
    size: `(content, tree of shapes) -> bytes` of the shared parameters in one
      upload (the content is `MODEL`) or of a component's message (its name), if
      they are sent in another form than their arrays.
  """

  up: Up | None = None
  down: Callable[[types.Broadcast, Array], types.Broadcast] | None = None
  collude: Callable[[types.Upload], types.Upload] | None = None
  init: Callable[[Flat], State] = _no_transport_state
  size: Callable[[str, Tree], int] | None = None


def _no_rounding(limit: float, /) -> float:
  del limit
  return 0.0


class Summation(NamedTuple):
  """Addition of uploads, of which the server learns only the sums.

  The rule and the messages of the method must be sums (`method.sums`). No hook
  of the server receives an upload.

  Attributes:
    add: `(tree of sums.Weighted, ServerCtx) -> (State, sums, arrived bool
      [K])`; the sums of weight times value over the uploads that arrived, and
      the new state of the component's server hooks. It draws the noise that a
      `Weighted` asks for if the component has the property `draws_noise`.
    limit: `(name of a parameter or running statistic) -> limit` of its change.
    largest: number of images that counts at most in the weight of a client.
    rounding: `(limit) -> largest error` of one value within a limit that is
      rounded; a component whose values would have an error above `COARSEST` is
      refused.
  """

  add: Callable[[Tree, contexts.ServerCtx], tuple[State, Tree, Array]]
  limit: Callable[[str], float]
  largest: float
  rounding: Callable[[float], float] = _no_rounding


class Participants(NamedTuple):
  """The participants of a run, for checks by a component.

  Attributes:
    clients: all clients.
    num_public: number of public images, 0 without a public set.
    cohort: largest number of clients in a round, `K`.
    fraction: fraction of the clients in a round, or with Poisson sampling the
      probability of each.
    poisson: whether each client is sampled independently.
    rounds: number of rounds of the run.
    sampler: sampler of batches, one of `data.sampling.SAMPLERS`.
    batch: number of images in a step, on average if it is random.
    identities: number of identities in a step, likewise.
    steps: number of steps of a round, 0 if it depends on the client.
    released: releases in the messages of all components, for the component that
      claims a guarantee; known when `bind` is called.
    rounding: largest norm of the difference between an update and the values
      that a `Summation` adds; None without a `Summation`; known when `bind` of
      the other components is called.
    image_shape: `(H, W, ch)`; () if the caller has no images.
  """

  clients: Sequence[types.ClientData]
  num_public: int
  cohort: int
  fraction: float = 1.0
  poisson: bool = False
  rounds: int = 1
  sampler: str = 'uniform'
  batch: int = 0
  identities: int = 0
  steps: int = 0
  released: tuple[Released, ...] = ()
  rounding: float | None = None
  image_shape: tuple[int, ...] = ()

  def require_public(self, wanted: int, field: str) -> None:
    """Checks that there is a public set of at least one batch.

    Raises:
      ConfigError: if there is no public set.
      DataError: if it has fewer than `wanted` images.
    """
    if not self.num_public:
      raise errors.ConfigError(
        'no public set', 'data.public', 'set it to a held-out domain'
      )
    if self.num_public < wanted:
      raise errors.DataError(
        f'{self.num_public} public images, but a batch has {wanted}',
        'data.public',
        f'set it to a larger domain, or lower {field}',
      )

  def require_identities(self, least: int, field: str) -> None:
    """Checks that statistics of a client are not those of single persons.

    Raises:
      DataError: if a client has fewer than `least` identities.
    """
    for client in self.clients:
      # Without labels the number of persons is unknown, and may be one.
      num = len(set(client.labels.tolist())) if client.labelled else 1
      if num < least:
        raise errors.DataError(
          f'{errors.counted(num, "identity is", "identities are")} too few: '
          'the shared statistics would reveal features of single persons',
          f'client {client.name}',
          f'remove the client, or lower {field}',
        )


# Facts about a component that decide how others treat it. They do not depend on
# its name, so that a plug-in is treated like a built-in component.
#   anchored: its clients learn from the received model, so that it has no
#     effect if no parameter is shared.
#   attacker: some clients attack; a guarantee covers the honest clients.
#   before_first_round: its data pass and `round_end` also run before round 0,
#     without training.
#   draws_noise: its `Summation` draws the noise for which others ask.
#   equal_weights: every upload has the same weight.
#   free_message: the message of its server hooks simulates what clients have
#     kept, so that it costs no bytes.
#   independent: no parameter is shared.
#   label_free: its loss does not depend on labels.
#   learned_style: it trains on images in a style that each client learns.
#   local_model: the state of its client hooks is (variables, whether there are
#     any), a model of the client that is evaluated beside the server's model.
#   needs_uploads: its hooks read `ctx.uploaded`, all uploads of a round, and
#     the server therefore gathers them.
#   proximal: its loss has mu / 2 times the squared distance to the received
#     model, with `mu` of its options.
#   pseudo_labels: it trains clients without labels, and the state of its client
#     hooks has `labels`, the cluster of each image, int32 [C], -1 for none.
#   rebased_uploads: its `Transport.up` computes the change from another model
#     than the received one, so that no later component may change the upload.
#   separable: its loss is a mean of terms that each depend on at most one
#     image, and its state depends on images only through the parameters.
#   simulated: it has no counterpart at real sites.
#   single_images: it needs a label, a mask or an output for every image of a
#     batch, which tracklets do not have.
#   unaccounted_noise: its noise belongs to no guarantee.
Property = Literal[
  'anchored',
  'attacker',
  'before_first_round',
  'draws_noise',
  'equal_weights',
  'free_message',
  'independent',
  'label_free',
  'learned_style',
  'local_model',
  'needs_uploads',
  'proximal',
  'pseudo_labels',
  'rebased_uploads',
  'separable',
  'simulated',
  'single_images',
  'unaccounted_noise',
]


class DomainStatistics(NamedTuple):
  """Statistics of the clients' domains, for figures and audits of a run.

  The state of the component's server hooks are the domain feature statistics of
  all clients (DFH, eq. 3.1), `[N, 4, D]`, rows m, v, p and q.

  Attributes:
    space: field of `Outputs` with the features that they describe.
    draw: `(key, statistics) -> losses.hallucination.Drawn`.
    novel: `(key, Drawn, features [B, D], normalised features [B, D], index of
      their client) -> features [B, D]` of a novel domain; None: the component
      trains on the domains of the other clients only.
    title: name of the method for figures.
  """

  space: str
  draw: Callable[[Array, Array], Any]
  novel: Callable[..., Array] | None = None
  title: str = ''


NetworkChange = Callable[[nn.Module], nn.Module]


class Component(NamedTuple):
  """A part of a federated method, usually one contribution of a paper.

  Attributes:
    name: name in `config.components`, and key of its states and messages.
    shared: regular expression of the shared parameters; one owner.
    network: change of the network of `config.model`, `(module) -> module`,
      before it has variables (`models.changes`). The changes of all components
      are applied, in the order of the configuration.
    client: hooks at every client; the hooks of all components are applied.
    server: hooks at the server, in the order of the configuration.
    transport: transformations of uploads and broadcasts, in the order of the
      configuration.
    clustering: assignment of clients to server models; one owner.
    aggregation: rule for the model, see `method.sums`; one owner, by default
      the mean weighted by number of images.
    summation: addition of uploads that the server does not see; one owner.
    statistics: the domain statistics that its clients send.
    properties: facts for decisions of other modules, see `Property`.
    conflicts: properties, fields of `Component` that are filled ('transport',
      'max_staleness'), fields of hooks ('server.receive') or names of
      components; no other component of the method may have one of them. Any
      other word is an error when the component is loaded.
    bind: `(Participants) -> Component`; checks before compilation that the
      method can use the clients and the public images, and returns the
      component that is used with them, of the same name, or None if it stays
      as it is.
    claim: `(Participants) -> method.guarantee.Claim` of differential privacy;
      it raises an error if the guarantee cannot hold.
    released: information in the message beside the trained model, under a claim
      for identities or images; such a claim refuses a message without it. A
      text says what the message reveals about persons, for its error.
    notice: text for the user, printed when a run begins.
    warn: `(metrics of a round, without the component's prefix) -> text`; the
      text is empty unless there is a problem, and is printed once.
    max_staleness: if above 0, clients start at different times, and uploads are
      used whose model is at most so many versions old.
  """

  name: str
  shared: str | None = None
  network: NetworkChange | None = None
  client: ClientHooks | None = None
  server: ServerHooks | None = None
  transport: Transport | None = None
  clustering: Cluster | None = None
  aggregation: Sum | Gather | None = None
  summation: Summation | None = None
  statistics: DomainStatistics | None = None
  properties: tuple[Property, ...] = ()
  conflicts: tuple[str, ...] = ()
  bind: Callable[[Participants], 'Component | None'] | None = None
  claim: Callable[[Participants], Any] | None = None
  released: Released | str = ''
  notice: str = ''
  warn: Callable[[dict[str, float]], str] | None = None
  max_staleness: int = 0


def early(component: Component) -> bool:
  """Returns whether a component has a data pass before the first round."""
  return bool(
    component.client
    and component.client.data_pass
    and 'before_first_round' in component.properties
  )


def judges(component: Component) -> bool:
  """Returns whether a component uses results on held-out persons."""
  return bool(component.server and component.server.judge)


def releases(component: Component) -> Released | None:
  """Returns what a component declares as released, None without it."""
  return None if isinstance(component.released, str) else component.released


def transport_state(component: Component) -> str:
  """Returns the name of the state of a component's transport at a client.

  The state of the component's client hooks has the component's name.
  """
  return f'{component.name}_transport'


def summed(components: Sequence[Component]) -> dict[str, MessageSum]:
  """Returns the components whose `receive` is a `MessageSum`, by name."""
  return {
    c.name: c.server.receive
    for c in components
    if c.server and isinstance(c.server.receive, MessageSum)
  }
