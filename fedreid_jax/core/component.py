"""The six slots of a federated method.

A method is a composition of components, one paper's idea each; a component
fills any of the slots `shared`, `term`, `channel`, `grouping`, `weights` and
`server_step`. Client functions see ONE client: no leading axis anywhere.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat, Metrics, Tree


class StepCtx(NamedTuple):
  """What a local term may look at in a step.

  Attributes:
    broadcast: what the server sent this round.
    work: the client's order for the round.
    batch: the augmented batch.
    outputs: what the model being trained says about it, differentiated in
      `loss`, as it was before the update in `observe`.
    model: the network.
    objective: `(Outputs, Batch) -> (loss, metrics)`, the plain re-ID loss.
    view: `(key) -> images`, another augmentation of the same photographs.
    step: index within the round, int32.
    lr: learning rate of the step, float32.
    classify: `(embedding [B, D]) -> logits [B, C]` with the model being
      trained.
    key: this term's own key for the step.
    round_key: this term's own key for the round.
  """

  broadcast: types.Broadcast
  work: types.Work
  batch: types.Batch
  outputs: types.Outputs
  model: types.Model
  objective: Callable[..., tuple[Array, Metrics]]
  view: Callable[[Array], Array]
  step: Array
  lr: Array
  classify: Callable[[Array], Array]
  key: Array
  round_key: Array


class FinishCtx(NamedTuple):
  """What a local term may look at when the client's round is over.

  Attributes:
    broadcast: what the server sent this round.
    work: the client's order for the round.
    start: all variables before training.
    variables: all variables after it.
    surveyed: the term's fold over all the client's images, if it asked.
    model: the network.
    key: this term's own key for the round.
  """

  broadcast: types.Broadcast
  work: types.Work
  start: Flat
  variables: Flat
  surveyed: Tree
  model: types.Model
  key: Array


class Survey(NamedTuple):
  """A fold over all of a client's images, evaluation mode, test transform.

  Attributes:
    init: `(Outputs of shapes) -> accumulator`.
    update: `(accumulator, Outputs, Batch) -> accumulator`.
  """

  init: Callable[[types.Outputs], Tree]
  update: Callable[[Tree, types.Outputs, types.Batch], Tree]


class LocalTerm(NamedTuple):
  """An addition to the local loss with a state of its own.

  Attributes:
    init: `(key, variables) -> slot`, kept at the client between rounds.
    open: `(slot, Broadcast, variables) -> state`, the value of one round.
    loss: `(variables, state, StepCtx) -> (loss, metrics)`, differentiated with
      respect to the trainable leaves of `variables`.
    observe: `(state, StepCtx) -> state`, once a step, after the update.
    survey: fold over all images after training, or None.
    finish: `(state, FinishCtx) -> (slot, extras)`; extras are uploaded.
    prepare: survey and finish also run before round 0, without training.
  """

  init: Callable[..., Tree] = lambda key, variables: ()
  open: Callable[..., Tree] = lambda slot, broadcast, variables: slot
  loss: Callable[..., tuple[Array, Metrics]] | None = None
  observe: Callable[..., Tree] | None = None
  survey: Survey | None = None
  finish: Callable[..., tuple[Tree, Tree]] = lambda state, ctx: (state, ())
  prepare: bool = False


class ServerStep(NamedTuple):
  """Work of the server after the reduction.

  Attributes:
    init: `(key, num_clients, Outputs of shapes) -> slot`.
    collect: `(slot, uploads [K], arrived bool [K]) -> slot`, after every round
      and after the preparation.
    apply: `(ServerState, uploads [K], arrived bool [K], key) -> ServerState`.
    broadcast: `(slot) -> extras` sent to every client.
  """

  init: Callable[..., Tree] = lambda key, num_clients, outputs: ()
  collect: Callable[..., Tree] | None = None
  apply: Callable[..., types.ServerState] | None = None
  broadcast: Callable[[Tree], Tree] | None = None


class Channel(NamedTuple):
  """What happens on the wire, both ends applied where the client is.

  Attributes:
    up: `(Upload, Broadcast, key) -> Upload`.
    down: `(Broadcast, key) -> Broadcast`.
  """

  up: Callable[..., types.Upload] | None = None
  down: Callable[..., types.Broadcast] | None = None


class Component(NamedTuple):
  """One paper's idea: which of the six slots it fills.

  Attributes:
    name: its key in `config.components`, slots and extras.
    shared: regular expression of the leaves that travel; one owner.
    term: added to the local loss.
    channel: applied in the order of the configuration.
    grouping: `(ServerState, uploads [K], arrived bool [K]) -> int32 [K]`, the
      group of each upload; one owner.
    weights: `(uploads [K], members bool [G, K]) -> float32 [G, K]`, or a dict
      of them by leaf; one owner. A row that sums to less than one leaves the
      rest to the server's model.
    server_step: applied in the order of the configuration.
    check: `(clients) -> None`, raises a DataError for clients the method
      cannot take; not a slot, called once before anything is compiled.
  """

  name: str
  shared: str | None = None
  term: LocalTerm | None = None
  channel: Channel | None = None
  grouping: Callable[..., Array] | None = None
  weights: Callable[..., Array | dict[str, Array]] | None = None
  server_step: ServerStep | None = None
  check: Callable[[Sequence[types.ClientData]], None] | None = None
