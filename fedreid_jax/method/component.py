"""Components: the interface between the engine and federated methods.

A federated method is a composition of components. A component is a set of
hooks, which are functions that the engine calls at fixed points of a round. A
hook receives only the state and the messages of its component. Its arguments
are in the order (state, inputs, context), without those that it does not need.
Client hooks receive ONE client: no array has a leading axis for clients.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat, Metrics, Tree
from fedreid_jax.method import contexts
from fedreid_jax.method.accounting import Released
from fedreid_jax.method.hook_types import (
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
  Update,
)
from fedreid_jax.method.sums import Gather, MessageSum, Sum


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
    before_first_round: whether the pass and `round_end` also run before round
      0, without training.
  """

  init: Callable[[types.Outputs, contexts.RoundCtx], Tree]
  update: Callable[[Tree, types.Outputs, types.Batch], Tree]
  before_first_round: bool = False


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
      it. The optimiser adds the weight decay. The losses of all other
      components must be `separable`, and they must have no `pre_step`, no
      `post_step`, and a `data_pass` only if `ComponentInfo.released` declares
      noise.
    separable: whether the loss is a mean of terms that depend on at most one
      image each, and the state depends on images only through the trained
      parameters.
    post_step: `(RoundState, LossCtx) -> RoundState`.
    data_pass: a fold over all images after training; its result is
      `ctx.data_pass` in `round_end`.
    round_end: `(RoundState, RoundEndCtx) -> (State, Message)`.
    models_to_evaluate: `(State) -> (variables, whether there are any)`, a model
      of the client that is evaluated in addition to the server's model. It is
      called for the clients that have a stored state.
  """

  init: InitClient = _no_state
  round_start: StartRound = _same
  pre_step: PreStep | None = None
  loss: Loss | None = None
  gradient: Gradient | None = None
  separable: bool = False
  post_step: PostStep | None = None
  data_pass: DataPass | None = None
  round_end: EndRound = _no_message
  models_to_evaluate: Callable[[State], tuple[Flat, Array]] | None = None


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
    message_bytes: `(State) -> bytes` of the message, if it is sent in another
      form than its arrays.
    metrics: `(State) -> metrics` of the round, float32, after `update`; they
      are recorded with the prefix of the component.
  """

  init: InitServer = _no_server_state
  receive: Receive | None = None
  update: Update | None = None
  message: Callable[[State], Message] | None = None
  message_bytes: Callable[[State], int] | None = None
  metrics: Callable[[State], Metrics] | None = None


def broadcast_state(state: State, /) -> Message:
  """Returns the whole state, as a `ServerHooks.message`."""
  return state


class Transport(NamedTuple):
  """Transformations of uploads and broadcasts on the client's device.

  Attributes:
    up: `(Upload, received Broadcast, key) -> Upload`.
    down: `(Broadcast, key) -> Broadcast`.
    collude: `(uploads [K]) -> uploads`, which simulates clients that know each
      other's uploads. It runs at the server, after every `up`.
    init: `(shared parameters) -> State`, kept at the client for `up_with`. If
      an upload is lost, the client keeps the state before the round.
    up_with: `(State, Upload, received Broadcast, key) -> (State, Upload)`, an
      `up` with a state.
    size: `(shared parameters) -> bytes` of them in one upload, if they are sent
      in another form than their arrays.
    moves: whether `up` computes the change from another model than the received
      one, so that no later component may change the upload.
    loses: `(Upload, received Broadcast) -> bool`, whether `up` replaces an
      upload that is lost by one that seems valid to the server. The client
      itself then keeps the state before the round.
  """

  up: Callable[[types.Upload, types.Broadcast, Array], types.Upload] | None = (
    None
  )
  down: Callable[[types.Broadcast, Array], types.Broadcast] | None = None
  collude: Callable[[types.Upload], types.Upload] | None = None
  init: Callable[[Flat], State] | None = None
  up_with: (
    Callable[
      [State, types.Upload, types.Broadcast, Array], tuple[State, types.Upload]
    ]
    | None
  ) = None
  size: Callable[[Flat], int] | None = None
  moves: bool = False
  loses: Callable[[types.Upload, types.Broadcast], Array] | None = None


class Summation(NamedTuple):
  """Addition of uploads, of which the server learns only the sums.

  The rule and the messages of the method must be sums (`method.sums`). No hook
  of the server receives an upload.

  Attributes:
    add: `(tree of sums.Weighted, ServerCtx) -> (State, sums, arrived bool
      [K])`; the sums of weight times value over the uploads that arrived, and
      the new state of the component's server hooks.
    limit: `(name of a parameter or running statistic) -> limit` of its change.
    largest: number of images that counts at most in the weight of a client.
    bits: number of bits of a value that is sent.
    coarsest: largest limit that a value may have. The bits round values with a
      larger limit too coarsely, and their component is refused.
    noisy: whether `add` draws the noise that a `Weighted` asks for; otherwise
      components that ask for noise are refused.
  """

  add: Callable[[Tree, contexts.ServerCtx], tuple[State, Tree, Array]]
  limit: Callable[[str], float]
  largest: float
  bits: int
  coarsest: float = math.inf
  noisy: bool = False


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
    rounding: largest norm of the difference between an update and the integers
      of it that a `Summation` adds; None without a `Summation`; known when
      `bind` is called.
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

  def require_public(self, wanted: int, field: str) -> None:
    """Checks that there is a public set of at least one batch.

    Args:
      wanted: number of images in the batch.
      field: configuration field of this number.

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


# Facts about a component that decide how others treat it. They do not depend on
# its name, so that a plug-in is treated like a built-in component.
#   anchored: its clients learn from the received model, so that it has no
#     effect if no parameter is shared.
#   attacker: some clients attack; a guarantee covers the honest clients.
#   equal_weights: every upload has the same weight.
#   independent: no parameter is shared.
#   proximal: its loss has mu / 2 times the squared distance to the received
#     model, with `mu` of its options.
#   simulated: it has no counterpart at real sites.
#   unaccounted_noise: its noise belongs to no guarantee.
Property = Literal[
  'anchored',
  'attacker',
  'equal_weights',
  'independent',
  'proximal',
  'simulated',
  'unaccounted_noise',
]


class ComponentInfo(NamedTuple):
  """Facts about a component that are not hooks.

  Attributes:
    notice: text for the user, printed when a run begins.
    properties: facts for decisions of other modules, see `Property`.
    requires: properties, hooks ('transport', ...) or names of components;
      another component of the method must have or fill one of them.
    conflicts: properties, hooks, fields of hooks ('server.receive',
      'info.needs_uploads') or names of components; no other component of the
      method may have or fill one of them.
    check: `(Participants) -> None`; raises an error before compilation if the
      method cannot use the clients or the public images.
    bind: `(Participants) -> Component`; returns the component that is used with
      these participants, if its hooks depend on them. It has the same name.
    claim: `(Participants) -> method.guarantee.Claim` of differential privacy;
      it raises an error if the guarantee cannot hold.
    released: information in the message beside the trained model, under a claim
      for identities or images; such a claim refuses a message without it.
    rounding: `(Participants, number of trained shared parameters) -> norm` of
      the difference between an update and the values that a `Summation` adds, 0
      if it is not given.
    exposes: the information about persons in the component's message, for the
      error of such a claim.
    warn: `(metrics of a round, without the component's prefix) -> text`; the
      text is empty unless there is a problem, and is printed once.
    needs_uploads: whether hooks read `ctx.uploaded`, all uploads of a round;
      such a method gathers.
    max_staleness: if above 0, clients start at different times, and uploads are
      used whose model is at most so many versions old.
    domain_statistics: the field of `Outputs` whose domain feature statistics
      `[N, 4, D]` (DFH, eq. 3.1) are the state of its server hooks, '' for none.
  """

  notice: str = ''
  properties: tuple[Property, ...] = ()
  requires: tuple[str, ...] = ()
  conflicts: tuple[str, ...] = ()
  check: Callable[[Participants], None] | None = None
  bind: Callable[[Participants], 'Component'] | None = None
  claim: Callable[[Participants], Any] | None = None
  released: Released | None = None
  rounding: Callable[[Participants, int], float] | None = None
  exposes: str = ''
  warn: Callable[[dict[str, float]], str] | None = None
  needs_uploads: bool = False
  max_staleness: int = 0
  domain_statistics: str = ''


class Component(NamedTuple):
  """A part of a federated method, usually one contribution of a paper.

  Attributes:
    name: name in `config.components`, and key of its states and messages.
    shared: regular expression of the shared parameters; one owner.
    client: hooks at every client; the hooks of all components are applied.
    server: hooks at the server, in the order of the configuration.
    transport: transformations of uploads and broadcasts, in the order of the
      configuration.
    clustering: assignment of clients to server models; one owner.
    aggregation: rule for the model, see `method.sums`; one owner, by default
      the mean weighted by number of images.
    summation: addition of uploads that the server does not see; one owner.
    info: notice, requirements, conflicts and checks.
  """

  name: str
  shared: str | None = None
  client: ClientHooks | None = None
  server: ServerHooks | None = None
  transport: Transport | None = None
  clustering: Cluster | None = None
  aggregation: Sum | Gather | None = None
  summation: Summation | None = None
  info: ComponentInfo = ComponentInfo()


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
