"""Contexts, which the engine passes to the hooks of a component.

A context is complete when it is created, and no field changes its meaning
within a round. The signatures of the hooks are at the end.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Broadcast, Flat, Metrics, Tree, Upload
from fedreid_jax.method import optimizers


@dataclasses.dataclass(frozen=True)
class ClientCtx:
  """The fields of all contexts at a client.

  Attributes:
    received: shared parameters as received from the server.
    message: message of this component's server hooks.
    task: the client's task in this round.
    optimizer: optimiser of the client.
    round: global round, int32.
  """

  received: Flat
  message: Any
  task: types.ClientTask
  optimizer: optimizers.Optimizer
  round: Array


@dataclasses.dataclass(frozen=True)
class RoundCtx(ClientCtx):
  """The context of the start of a client's round.

  Attributes:
    variables: all variables of the client at the start of the round.
    batch_shape: `(B, H, W, ch)` of a step.
    max_images: largest number of rows in a round, including repeats and
      padding.
  """

  variables: Flat
  batch_shape: tuple[int, int, int, int]
  max_images: int


@dataclasses.dataclass(frozen=True)
class StepCtx(ClientCtx):
  """The context of a step before its loss.

  Attributes:
    variables: variables of the client when the hook is called.
    batch: the augmented batch.
    photographs: the images of the batch without augmentation, uint8
      `[B, H, W, ch]`.
    model: the network.
    objective: `(Outputs, Batch) -> (loss, metrics)`, the plain re-ID loss.
    transform: `(key) -> images`, another augmentation of the photographs.
    test_transform: `(uint8 images) -> float32 images`, without augmentation.
    step: index within the round, int32.
    lr: learning rate of the step, float32.
    key: key of this component, client and step.
    round_key: key of this component, client and round.
  """

  variables: Flat
  batch: types.Batch
  photographs: Array
  model: types.Model
  objective: Callable[[types.Outputs, types.Batch], tuple[Array, Metrics]]
  transform: Callable[[Array], Array]
  test_transform: Callable[[Array], Array]
  step: Array
  lr: Array
  key: Array
  round_key: Array


@dataclasses.dataclass(frozen=True)
class LossCtx(StepCtx):
  """The context of a step with the outputs of the trained model.

  Attributes:
    outputs: outputs for the batch before the update; `loss` is differentiated
      with respect to them.
    classify: `(embedding [B, D]) -> logits [B, C]` with the trained model.
    aux: second result of this component's `pre_step`, None if there is none.
  """

  outputs: types.Outputs
  classify: Callable[[Array], Array]
  aux: Any


@dataclasses.dataclass(frozen=True)
class GradientCtx:
  """The context of a step before its gradient.

  Attributes:
    batch: the augmented batch.
    loss: `(parameters, first row, number of rows) -> (loss, metrics)` of
      consecutive rows of the batch, with the losses of all components.
    key: key of this component, client and step.
  """

  batch: types.Batch
  loss: Callable[[Flat, Array, int], tuple[Array, Metrics]]
  key: Array


@dataclasses.dataclass(frozen=True)
class RoundEndCtx(ClientCtx):
  """The context of the end of a client's round.

  Attributes:
    start: all variables before training.
    variables: all variables after training.
    data_pass: result of the component's data pass, None if there is none.
    trained: whether the client has trained. It is false in the pass before
      round 0, whose `round` is 0 as well.
    model: the network.
    lr: learning rate at the beginning of the round.
    test_transform: `(uint8 images) -> float32 images`.
    key: key of this component, client and round.
  """

  start: Flat
  variables: Flat
  data_pass: Tree
  trained: bool
  model: types.Model
  lr: Array
  test_transform: Callable[[Array], Array]
  key: Array


@dataclasses.dataclass(frozen=True)
class ServerInitCtx:
  """The context of the server before round 0.

  Attributes:
    key: key of this component.
    num_clients: `N`.
    sizes: number of images of each client in canonical order, float32 `[N]`.
    outputs: shapes of the model's outputs for a batch.
    shared: shared parameters of one model.
    public: images of the public set, uint8 `[M, H, W, ch]`; `M` is 0 without a
      public set.
  """

  key: Array
  num_clients: int
  sizes: Array
  outputs: types.Outputs
  shared: Flat
  public: Array


@dataclasses.dataclass(frozen=True)
class ReceiveCtx:
  """The senders of messages.

  Attributes:
    index: canonical index of each sender, -1 for padding, int32 `[K]`.
  """

  index: Array


@dataclasses.dataclass(frozen=True)
class UploadCtx:
  """One upload, for a rule that is a sum.

  Attributes:
    index: canonical index of the client, -1 for padding, int32.
    num_examples: number of images of the client, float32.
    num_steps: number of local steps of the client, int32.
    uploaded: shared parameters of the client.
    start: the model of the client's group before the aggregation.
  """

  index: Array
  num_examples: Array
  num_steps: Array
  uploaded: Flat
  start: Flat


class NoUploads(NamedTuple):
  """The value of `ctx.uploaded` if the server keeps no uploads.

  Attributes:
    reader: name of the component that has the context.
  """

  reader: str

  def refuse(self) -> NoReturn:
    """Raises the error for a component that reads the uploads.

    Raises:
      ConfigError: in every call.
    """
    raise errors.ConfigError(
      f'component {self.reader!r} reads ctx.uploaded, which a round of sums '
      'does not keep',
      'components',
      "add 'needs_uploads' to the properties of the component",
    )


@dataclasses.dataclass(frozen=True)
class ServerCtx:
  """The context of the server after it has received the uploads of a round.

  Attributes:
    index: canonical index of each client, -1 for padding, int32 `[K]`.
    valid: whether each upload is real and finite, bool `[K]`.
    uploaded: shared parameters of each client, `[K, ...]`; to read them is an
      error if uploads are added and not gathered.
    num_examples: number of images of each client, float32 `[K]`.
    num_steps: number of local steps of each client, int32 `[K]`.
    previous: the server's models before the round, `[G, ...]`.
    public: images of the public set, uint8 `[M, H, W, ch]`.
    model: the network.
    train_transform: `(key, uint8 images) -> float32 images`.
    test_transform: `(uint8 images) -> float32 images`.
    complete: `(shared parameters) -> variables`, with zeros for personal
      parameters, on which features do not depend.
    round: global round, int32.
    key: key of this component and round.
  """

  index: Array
  valid: Array
  uploaded: Flat
  num_examples: Array
  num_steps: Array
  previous: Flat
  public: Array
  model: types.Model
  train_transform: Callable[..., Array]
  test_transform: Callable[[Array], Array]
  complete: Callable[[Flat], Flat]
  round: Array
  key: Array

  def __getattribute__(self, name: str) -> Any:
    """Returns a field, and refuses to read uploads that are not kept."""
    # Not `__getattr__`, which Python does not call for fields that exist.
    value = object.__getattribute__(self, name)
    if isinstance(value, NoUploads):
      value.refuse()
    return value


@dataclasses.dataclass(frozen=True)
class AggregationCtx(ServerCtx):
  """The context of the server after clients have been assigned to groups.

  Attributes:
    members: uploads of each group, bool `[G, K]`.
    start: the model of each group before the aggregation, `[G, ...]`: its
      previous model, or if clients are clustered the mean of the models that
      its members received.
  """

  members: Array
  start: Flat


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

  def __call__(self, state: State, ctx: RoundCtx, /) -> RoundState: ...


class PreStep(Protocol):
  """Runs before the loss of a step and is not differentiated."""

  def __call__(
    self, state: RoundState, ctx: StepCtx, /
  ) -> tuple[RoundState, Aux]: ...


class Loss(Protocol):
  """Computes a term that is added to the local loss.

  It is differentiated with respect to the parameters in `variables`.
  """

  def __call__(
    self, variables: Flat, state: RoundState, ctx: LossCtx, /
  ) -> tuple[Any, Metrics]: ...


class Gradient(Protocol):
  """Computes the gradient of a step in place of `jax.grad`.

  Parameters without a gradient in the result are not trained.
  """

  def __call__(
    self, params: Flat, ctx: GradientCtx, /
  ) -> tuple[Flat, Metrics]: ...


class PostStep(Protocol):
  """Runs after the update of a step, with the outputs before the update."""

  def __call__(self, state: RoundState, ctx: LossCtx, /) -> RoundState: ...


class EndRound(Protocol):
  """Computes the state to keep and the message to send after the round."""

  def __call__(
    self, state: RoundState, ctx: RoundEndCtx, /
  ) -> tuple[State, Message]: ...


class Up(Protocol):
  """Transforms an upload on the client's device, with a state kept there."""

  def __call__(
    self, state: State, upload: Upload, received: Broadcast, key: Array, /
  ) -> tuple[State, Upload]: ...


class InitServer(Protocol):
  """Initialises the state of the server before round 0."""

  def __call__(self, ctx: ServerInitCtx, /) -> State: ...


class Receive(Protocol):
  """Updates the state with the messages of this component in a round.

  Messages are stacked, `[K, ...]`. Rows that are not valid must have no effect.
  """

  def __call__(
    self,
    state: State,
    messages: Message,
    valid: Array,
    ctx: ReceiveCtx,
    /,
  ) -> State: ...


class Update(Protocol):
  """Updates state and models `[G, ...]` after the aggregation of a round."""

  def __call__(
    self, state: State, models: Flat, ctx: AggregationCtx, /
  ) -> tuple[State, Flat]: ...


class Judge(Protocol):
  """Updates the state of the server after an evaluation of its models."""

  def __call__(self, state: State, metrics: Metrics, done: Array, /) -> State:
    """Returns the state; `done` is the number of rounds, int32."""
    ...


class Cluster(Protocol):
  """Assigns each client of a cohort to a server model, an index below `N`."""

  def __call__(self, groups: Array, ctx: ServerCtx, /) -> Array:
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
    self, messages: Message, ctx: AggregationCtx, /
  ) -> Array | dict[str, Array]:
    """Returns the weights from the messages of this component, `[K, ...]`."""
    ...


class Weight(Protocol):
  """Computes the weight of one upload before normalisation.

  The result is a number for all parameters, or a dict of numbers by parameter
  name (absent parameters are weighted by size).
  """

  def __call__(
    self, message: Message, ctx: UploadCtx, /
  ) -> Array | dict[str, Array]:
    """Returns the weight from this component's message of one client."""
    ...


class Combine(Protocol):
  """Computes the models of a rule that is no weighted mean, such as a median.

  The context has all uploads. Running statistics of the result are used only if
  `batch_stats_rule` is 'average'.
  """

  def __call__(self, models: Flat, ctx: AggregationCtx, /) -> Flat:
    """Returns the models `[G, ...]`; `models` are the weighted means."""
    ...
