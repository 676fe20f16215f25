"""Signatures of the hooks of a component (`method.component`)."""

from typing import Any, Protocol

from fedreid_jax.core.types import Array, Broadcast, Flat, Metrics, Upload
from fedreid_jax.method import contexts

# The component chooses the structure of these trees; the engine only maps them.
State = Any
RoundState = Any
Aux = Any
Message = Any


class InitClient(Protocol):
  """Initialises the state that a client keeps between rounds."""

  def __call__(self, key: Array, variables: Flat, /) -> State:
    """Returns the state; the key belongs to this component and client."""
    ...


class StartRound(Protocol):
  """Computes the state of one round from the state that the client keeps."""

  def __call__(self, state: State, ctx: contexts.RoundCtx, /) -> RoundState: ...


class PreStep(Protocol):
  """Runs before the loss of a step and is not differentiated."""

  def __call__(
    self, state: RoundState, ctx: contexts.StepCtx, /
  ) -> tuple[RoundState, Aux]: ...


class Loss(Protocol):
  """Computes a term that is added to the local loss.

  It is differentiated with respect to the parameters in `variables`.
  """

  def __call__(
    self, variables: Flat, state: RoundState, ctx: contexts.LossCtx, /
  ) -> tuple[Any, Metrics]: ...


class Gradient(Protocol):
  """Computes the gradient of a step in place of `jax.grad`.

  Parameters without a gradient in the result are not trained.
  """

  def __call__(
    self, params: Flat, ctx: contexts.GradientCtx, /
  ) -> tuple[Flat, Metrics]: ...


class PostStep(Protocol):
  """Runs after the update of a step, with the outputs before the update."""

  def __call__(
    self, state: RoundState, ctx: contexts.LossCtx, /
  ) -> RoundState: ...


class EndRound(Protocol):
  """Computes the state to keep and the message to send after the round."""

  def __call__(
    self, state: RoundState, ctx: contexts.RoundEndCtx, /
  ) -> tuple[State, Message]: ...


class Up(Protocol):
  """Transforms an upload on the client's device, with a state kept there."""

  def __call__(
    self, state: State, upload: Upload, received: Broadcast, key: Array, /
  ) -> tuple[State, Upload]: ...


class InitServer(Protocol):
  """Initialises the state of the server before round 0."""

  def __call__(self, ctx: contexts.ServerInitCtx, /) -> State: ...


class Receive(Protocol):
  """Updates the state with the messages of this component in a round.

  Messages are stacked, `[K, ...]`. Rows that are not valid must have no effect.
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
  """Updates state and models `[G, ...]` after the aggregation of a round."""

  def __call__(
    self, state: State, models: Flat, ctx: contexts.AggregationCtx, /
  ) -> tuple[State, Flat]: ...


class Cluster(Protocol):
  """Assigns each client of a cohort to a server model, an index below `N`."""

  def __call__(self, groups: Array, ctx: contexts.ServerCtx, /) -> Array:
    """Returns int32 `[K]` from the groups of all clients, int32 `[N]`."""
    ...


class Weigh(Protocol):
  """Computes the weights of the uploads in the model of each group.

  The result is one array float32 `[G, K]` for all parameters, or a dict of
  arrays by parameter name (absent parameters are weighted by size). If a row
  sums to less than one, the server's model has the remaining weight. A row that
  is all zero or not finite is replaced by weights by number of images.
  """

  def __call__(
    self, messages: Message, ctx: contexts.AggregationCtx, /
  ) -> Array | dict[str, Array]:
    """Returns the weights from the messages of this component, `[K, ...]`."""
    ...


class Weight(Protocol):
  """Computes the weight of one upload before normalisation.

  The result is a number for all parameters, or a dict of numbers by parameter
  name (absent parameters are weighted by size).
  """

  def __call__(
    self, message: Message, ctx: contexts.UploadCtx, /
  ) -> Array | dict[str, Array]:
    """Returns the weight from this component's message of one client."""
    ...


class Combine(Protocol):
  """Computes the models of a rule that is no weighted mean, such as a median.

  The context has all uploads. Running statistics of the result are used only if
  `batch_stats_rule` is 'average'.
  """

  def __call__(self, models: Flat, ctx: contexts.AggregationCtx, /) -> Flat:
    """Returns the models `[G, ...]`; `models` are the weighted means."""
    ...
