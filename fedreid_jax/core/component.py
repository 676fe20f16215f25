"""Components: the contract between the engine and a paper's idea.

A federated method is a composition of components. A component fills hooks; the
engine routes its state and its messages by its name, so a component neither
writes its own name nor reads the state of another. Arguments are in the order
(own state, what is given, context). Client hooks see ONE client: no array has a
leading axis for clients.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from fedreid_jax import errors
from fedreid_jax.core import contexts, types
from fedreid_jax.core.types import Array, Flat, Metrics, Tree

# What a component keeps or sends is a pytree of its own choice.
State = Any
RoundState = Any
Aux = Any
Message = Any


class InitClient(Protocol):
  """State that a client keeps between rounds, before its first round."""

  def __call__(self, key: Array, variables: Flat, /) -> State:
    """Returns the state; the key is that of this component and client."""
    ...


class StartRound(Protocol):
  """State of one round from the state that the client keeps."""

  def __call__(self, state: State, ctx: contexts.RoundCtx, /) -> RoundState: ...


class PreStep(Protocol):
  """Work before the loss of a step, not differentiated."""

  def __call__(
    self, state: RoundState, ctx: contexts.StepCtx, /
  ) -> tuple[RoundState, Aux]: ...


class Loss(Protocol):
  """An addition to the local loss.

  It is differentiated with respect to the trainable leaves of `variables`.
  """

  def __call__(
    self, variables: Flat, state: RoundState, ctx: contexts.LossCtx, /
  ) -> tuple[Any, Metrics]: ...


class PostStep(Protocol):
  """Work after the update of a step; the outputs are those before it."""

  def __call__(
    self, state: RoundState, ctx: contexts.LossCtx, /
  ) -> RoundState: ...


class EndRound(Protocol):
  """State to keep and message to send when the round is over."""

  def __call__(
    self, state: RoundState, ctx: contexts.RoundEndCtx, /
  ) -> tuple[State, Message]: ...


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
  """A fold over all images of a client after training, test transform.

  Features are those of the trained model in evaluation mode, with moments of
  batch normalisation that are re-estimated at its weights on the same images
  (`core.batch_stats`): the running moments follow a moving model with a delay.

  Attributes:
    init: `(Outputs of shapes) -> accumulator`.
    update: `(accumulator, Outputs, Batch) -> accumulator`.
    before_first_round: the pass and `round_end` also run before round 0,
      without training.
  """

  init: Callable[[types.Outputs], Tree]
  update: Callable[[Tree, types.Outputs, types.Batch], Tree]
  before_first_round: bool = False


class ClientHooks(NamedTuple):
  """The part of a component that runs at every client; all hooks add up.

  Attributes:
    init: `(key, variables) -> State`, kept at the client between rounds.
    round_start: `(State, RoundCtx) -> RoundState`.
    pre_step: `(RoundState, StepCtx) -> (RoundState, Aux)`; Aux reaches the
      `loss` and `post_step` of this component as `ctx.aux`.
    loss: `(variables, RoundState, LossCtx) -> (loss, metrics)`.
    post_step: `(RoundState, LossCtx) -> RoundState`.
    data_pass: a fold over all images after training; `round_end` has its
      result as `ctx.data_pass`.
    round_end: `(RoundState, RoundEndCtx) -> (State, Message)`.
    models_to_evaluate: `(State) -> (variables, whether there are any)`, a model
      of the client that is evaluated beside the server's.
  """

  init: InitClient = _no_state
  round_start: StartRound = _same
  pre_step: PreStep | None = None
  loss: Loss | None = None
  post_step: PostStep | None = None
  data_pass: DataPass | None = None
  round_end: EndRound = _no_message
  models_to_evaluate: Callable[[State], tuple[Flat, Array]] | None = None


class InitServer(Protocol):
  """State of the server before round 0."""

  def __call__(self, ctx: contexts.ServerInitCtx, /) -> State: ...


class Receive(Protocol):
  """State after the messages of a round, which are of this component only.

  Messages are stacked, `[K, ...]`; rows that are not valid must have no effect.
  """

  def __call__(
    self,
    state: State,
    messages: Message,
    valid: Array,
    ctx: contexts.ReceiveCtx,
    /,
  ) -> State: ...


class Update(Protocol):
  """State and models `[G, ...]` after the aggregation of a round."""

  def __call__(
    self, state: State, models: Flat, ctx: contexts.AggregationCtx, /
  ) -> tuple[State, Flat]: ...


def _no_server_state(ctx: contexts.ServerInitCtx, /) -> State:
  del ctx
  return ()


class ServerHooks(NamedTuple):
  """The part of a component that runs at the server, in order.

  Attributes:
    init: `(ServerInitCtx) -> State`.
    receive: `(State, messages [K], valid bool [K], ReceiveCtx) -> State`, after
      every round and after the data pass before round 0.
    update: `(State, models [G, ...], AggregationCtx) -> (State, models)`.
    message: `(State) -> Message`, broadcast to every client, where the hooks of
      this component find it as `ctx.message`.
  """

  init: InitServer = _no_server_state
  receive: Receive | None = None
  update: Update | None = None
  message: Callable[[State], Message] | None = None


class Transport(NamedTuple):
  """Changes on the wire; both ends are applied where the client is.

  Attributes:
    up: `(Upload, Broadcast as received, key) -> Upload`.
    down: `(Broadcast, key) -> Broadcast`.
  """

  up: Callable[[types.Upload, types.Broadcast, Array], types.Upload] | None = (
    None
  )
  down: Callable[[types.Broadcast, Array], types.Broadcast] | None = None


class Cluster(Protocol):
  """The server model, below `N`, that each client of the cohort shares."""

  def __call__(self, groups: Array, ctx: contexts.ServerCtx, /) -> Array:
    """Returns int32 `[K]` from the groups of all clients, int32 `[N]`."""
    ...


class Weigh(Protocol):
  """Weights of the uploads in the model of each group.

  One array float32 `[G, K]` for all leaves, or a dict of them by leaf (a leaf
  that is absent goes by size). A row that sums to less than one leaves the rest
  to the server's model; one that is all zero or not finite is replaced by
  weights by number of images.
  """

  def __call__(
    self, messages: Message, ctx: contexts.AggregationCtx, /
  ) -> Array | dict[str, Array]:
    """Returns the weights from the messages of this component, `[K, ...]`."""
    ...


class Aggregation(NamedTuple):
  """How uploads become the model of each group.

  Attributes:
    weights: of the weighted mean.
  """

  weights: Weigh


class Participants(NamedTuple):
  """Who takes part, as the check of a component sees it.

  Attributes:
    clients: all of them.
    num_public: images of the public set, 0 without one.
    cohort: clients of a round, `K`.
  """

  clients: Sequence[types.ClientData]
  num_public: int
  cohort: int

  def require_public(self, wanted: int, field: str) -> None:
    """Refuses a public set that is missing or smaller than a batch.

    Args:
      wanted: images of the batch.
      field: of the configuration that says so.

    Raises:
      ConfigError: without a public set.
      DataError: when it has fewer than `wanted` images.
    """
    if not self.num_public:
      raise errors.ConfigError(
        'no public set', 'data.public', 'name a held-out domain'
      )
    if self.num_public < wanted:
      raise errors.DataError(
        f'{self.num_public} public images, a batch has {wanted}',
        'data.public',
        f'name a larger domain, or lower {field}',
      )


class ComponentInfo(NamedTuple):
  """Facts about a component that are not hooks.

  Attributes:
    notice: text for the user, printed when a run begins.
    requires: names of components, or of hooks ('transport', ...), one of which
      another component of the method must be or fill.
    conflicts: names of components, or of hooks, that no other component of the
      method may be or fill.
    check: `(Participants) -> None`; raises an error for clients or public
      images that the method cannot work with, before anything is compiled.
    warn: `(metrics of a round, without the component's prefix) -> text`, empty
      unless something is wrong; a run prints the text once.
  """

  notice: str = ''
  requires: tuple[str, ...] = ()
  conflicts: tuple[str, ...] = ()
  check: Callable[[Participants], None] | None = None
  warn: Callable[[dict[str, float]], str] | None = None


class Component(NamedTuple):
  """One paper's idea.

  Attributes:
    name: its key in `config.components`; routes states and messages.
    shared: regular expression of the shared parameters; one owner.
    client: hooks at every client; those of all components add up.
    server: hooks at the server, in the order of the configuration.
    transport: changes on the wire, in the order of the configuration.
    clustering: which server model a client shares; one owner.
    aggregation: how uploads become the model; one owner, by default the mean
      weighted by number of images.
    info: notice, requirements, conflicts and checks.
  """

  name: str
  shared: str | None = None
  client: ClientHooks | None = None
  server: ServerHooks | None = None
  transport: Transport | None = None
  clustering: Cluster | None = None
  aggregation: Aggregation | None = None
  info: ComponentInfo = ComponentInfo()
