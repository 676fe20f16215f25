"""Contexts: what the engine gives to the hooks of a component.

A context is complete when it is built, and no field changes its meaning within
a round.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from fedreid_jax.core import optimizers, types
from fedreid_jax.core.types import Array, Flat, Metrics, Tree


@dataclasses.dataclass(frozen=True)
class RoundCtx:
  """A client's round as it begins.

  Attributes:
    received: shared parameters as the server sent them.
    message: what this component's server hooks sent.
    variables: all variables the client starts from.
    optimizer: of the client.
    batch_shape: `(B, H, W, ch)` of a step.
    max_images: the most images of a round, repeats and padding counted.
    round: global round, int32.
  """

  received: Flat
  message: Any
  variables: Flat
  optimizer: optimizers.Optimizer
  batch_shape: tuple[int, int, int, int]
  max_images: int
  round: Array


@dataclasses.dataclass(frozen=True)
class StepCtx:
  """A step before its loss.

  Attributes:
    received: shared parameters as the server sent them.
    message: what this component's server hooks sent.
    task: the client's task in this round.
    batch: the augmented batch.
    photographs: the same images as they are stored, uint8 `[B, H, W, ch]`.
    model: the network.
    objective: `(Outputs, Batch) -> (loss, metrics)`, the plain re-ID loss.
    transform: `(key) -> images`, another augmentation of the photographs.
    test_transform: `(uint8 images) -> float32 images`, without augmentation.
    optimizer: of the client, for a network that a component trains itself.
    step: index within the round, int32.
    lr: learning rate of the step, float32.
    round: global round, int32.
    key: key of this component, client and step.
    round_key: key of this component, client and round.
  """

  received: Flat
  message: Any
  task: types.ClientTask
  batch: types.Batch
  photographs: Array
  model: types.Model
  objective: Callable[[types.Outputs, types.Batch], tuple[Array, Metrics]]
  transform: Callable[[Array], Array]
  test_transform: Callable[[Array], Array]
  optimizer: optimizers.Optimizer
  step: Array
  lr: Array
  round: Array
  key: Array
  round_key: Array


@dataclasses.dataclass(frozen=True)
class LossCtx(StepCtx):
  """A step and the outputs of the model that is trained.

  Attributes:
    outputs: of the batch, before the update; `loss` differentiates them.
    classify: `(embedding [B, D]) -> logits [B, C]` with that model.
    aux: second result of this component's `pre_step`, None without one.
  """

  outputs: types.Outputs
  classify: Callable[[Array], Array]
  aux: Any


@dataclasses.dataclass(frozen=True)
class RoundEndCtx:
  """A client's round when it is over.

  Attributes:
    received: shared parameters as the server sent them.
    message: what this component's server hooks sent.
    task: the client's task in this round.
    start: all variables before training.
    variables: all variables after training.
    data_pass: result of the component's data pass, None without one.
    model: the network.
    optimizer: of the client.
    lr: learning rate at the beginning of the round.
    test_transform: `(uint8 images) -> float32 images`.
    round: global round, int32.
    key: key of this component, client and round.
  """

  received: Flat
  message: Any
  task: types.ClientTask
  start: Flat
  variables: Flat
  data_pass: Tree
  model: types.Model
  optimizer: optimizers.Optimizer
  lr: Array
  test_transform: Callable[[Array], Array]
  round: Array
  key: Array


@dataclasses.dataclass(frozen=True)
class ServerInitCtx:
  """The server before round 0.

  Attributes:
    key: of this component.
    num_clients: `N`.
    sizes: images of each client in canonical order, float32 `[N]`.
    outputs: shapes of the model's outputs for a batch.
    shared: shared parameters of one model.
    public: images of the public set, uint8 `[M, H, W, ch]`; `M` is 0 without
      one.
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
    index: canonical place of each sender, -1 for padding, int32 `[K]`.
  """

  index: Array


@dataclasses.dataclass(frozen=True)
class ServerCtx:
  """The server when the uploads of a round are there.

  Attributes:
    index: canonical place of each client, -1 for padding, int32 `[K]`.
    valid: which uploads are real and finite, bool `[K]`.
    uploaded: shared parameters of each client, `[K, ...]`.
    num_examples: images of each client, float32 `[K]`.
    num_steps: local steps of each client, int32 `[K]`.
    previous: the server's models before the round, `[G, ...]`.
    public: images of the public set, uint8 `[M, H, W, ch]`.
    model: the network.
    train_transform: `(key, uint8 images) -> float32 images`.
    test_transform: `(uint8 images) -> float32 images`.
    complete: `(shared parameters) -> variables`, with zeros for leaves that are
      not shared; features do not depend on those.
    round: global round, int32.
    key: of this component and round.
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


@dataclasses.dataclass(frozen=True)
class AggregationCtx(ServerCtx):
  """The server when it is known which clients make up each group.

  Attributes:
    members: which uploads make up each group, bool `[G, K]`.
    start: the model that each group moves from, `[G, ...]`: the previous one,
      or of groups made this round the mean of the models its members had.
  """

  members: Array
  start: Flat
