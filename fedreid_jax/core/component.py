"""The six slots of a federated method.

A method is a composition of components, one paper's idea each; a component
fills any of the slots `shared`, `term`, `channel`, `grouping`, `weights` and
`server_step`. Client functions see ONE client: no leading axis anywhere.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.core import optimizers, types
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
    optimizer: of the client, for a network a term trains itself.
    key: this term's own key for the step.
    round_key: this term's own key for the round.
    note: what the term's `before` left for the others of its functions.
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
  optimizer: optimizers.Optimizer
  key: Array
  round_key: Array
  note: Tree


class OpenCtx(NamedTuple):
  """What a local term may look at when a client's round begins.

  Attributes:
    broadcast: what the server sent this round.
    variables: all variables the client starts from.
    optimizer: of the client.
    num_images: the most a client sees in a round, repeats and padding counted.
  """

  broadcast: types.Broadcast
  variables: Flat
  optimizer: optimizers.Optimizer
  num_images: int


class FinishCtx(NamedTuple):
  """What a local term may look at when the client's round is over.

  Attributes:
    broadcast: what the server sent this round.
    work: the client's order for the round.
    start: all variables before training.
    variables: all variables after it.
    surveyed: the term's fold over all the client's images, if it asked.
    first_batch: the round's first batch under the test transform, if it asked.
    model: the network.
    optimizer: of the client.
    lr: learning rate at the beginning of the round.
    test_view: `(uint8 images) -> float32 images`.
    key: this term's own key for the round.
  """

  broadcast: types.Broadcast
  work: types.Work
  start: Flat
  variables: Flat
  surveyed: Tree
  first_batch: types.Batch | None
  model: types.Model
  optimizer: optimizers.Optimizer
  lr: Array
  test_view: Callable[[Array], Array]
  key: Array


class InitCtx(NamedTuple):
  """What a server step may look at when a run begins.

  Attributes:
    key: this step's own key.
    num_clients: `N`.
    sizes: images of each client in canonical order, float32 `[N]`.
    outputs: shapes of what the model says about a batch.
    shared: the leaves that travel, of one model.
    public: images everybody may see, uint8 `[M, H, W, ch]`, or None.
  """

  key: Array
  num_clients: int
  sizes: Array
  outputs: types.Outputs
  shared: Flat
  public: Array | None


class ServerCtx(NamedTuple):
  """What the server's side of a method may look at in a round.

  Attributes:
    uploads: of all places, `[K, ...]`, in canonical order.
    arrived: which of them are real and finite, bool `[K]`.
    previous: the server's models before the reduction, `[G, ...]`; of groups
      made this round, the mean of what their members started from.
    public: images everybody may see, uint8 `[M, H, W, ch]`, or None.
    model: the network.
    train_view: `(key, uint8 images) -> float32 images`.
    test_view: `(uint8 images) -> float32 images`.
    complete: `(shared leaves) -> variables`, zeros for leaves that never
      travel; features do not depend on them.
    round: global round, int32.
    key: this component's own key for the round.
  """

  uploads: types.Upload
  arrived: Array
  previous: Flat
  public: Array | None
  model: types.Model
  train_view: Callable[..., Array]
  test_view: Callable[[Array], Array]
  complete: Callable[[Flat], Flat]
  round: Array
  key: Array


class Survey(NamedTuple):
  """A fold over all of a client's images after training, test transform.

  Features are those of the trained model in evaluation mode with moments of
  batch normalisation that are re-estimated at its weights on the same images
  (`core.batch_stats`): the running ones follow a moving model with a delay.

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
    open: `(slot, OpenCtx) -> state`, the value of one round.
    before: `(state, StepCtx) -> (state, note)`, once a step, before the loss;
      the outputs are not there yet.
    loss: `(variables, state, StepCtx) -> (loss, metrics)`, differentiated with
      respect to the trainable leaves of `variables`.
    observe: `(state, StepCtx) -> state`, once a step, after the update.
    survey: fold over all images after training, or None.
    finish: `(state, FinishCtx) -> (slot, extras)`; extras are uploaded.
    prepare: survey and finish also run before round 0, without training.
    first_batch: `finish` looks at the round's first batch.
  """

  init: Callable[..., Tree] = lambda key, variables: ()
  open: Callable[[Any, OpenCtx], Tree] = lambda slot, ctx: slot
  before: Callable[..., tuple[Tree, Tree]] | None = None
  loss: Callable[..., tuple[Any, Metrics]] | None = None
  observe: Callable[..., Tree] | None = None
  survey: Survey | None = None
  finish: Callable[..., tuple[Tree, Tree]] = lambda state, ctx: (state, ())
  prepare: bool = False
  first_batch: bool = False


class ServerStep(NamedTuple):
  """Work of the server after the reduction.

  Attributes:
    init: `(InitCtx) -> slot`.
    collect: `(slot, uploads [K], arrived bool [K]) -> slot`, after every round
      and after the preparation.
    apply: `(ServerState, ServerCtx) -> ServerState`.
    broadcast: `(slot) -> extras` sent to every client.
    one_model: it cannot work where the server keeps several models.
  """

  init: Callable[[InitCtx], Tree] = lambda ctx: ()
  collect: Callable[..., Tree] | None = None
  apply: Callable[..., types.ServerState] | None = None
  broadcast: Callable[[Tree], Tree] | None = None
  one_model: bool = False


class Channel(NamedTuple):
  """What happens on the wire, both ends applied where the client is.

  Attributes:
    up: `(Upload, Broadcast, key) -> Upload`.
    down: `(Broadcast, key) -> Broadcast`.
  """

  up: Callable[..., types.Upload] | None = None
  down: Callable[..., types.Broadcast] | None = None


class Population(NamedTuple):
  """Who takes part, as a method's check sees it.

  Attributes:
    clients: all of them.
    num_public: public images, 0 without a public set.
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
        'no public set', 'data.public', 'name a domain nobody trains on'
      )
    if self.num_public < wanted:
      raise errors.DataError(
        f'{self.num_public} public images, a batch has {wanted}',
        'data.public',
        f'name a larger domain, or lower {field}',
      )


class Component(NamedTuple):
  """One paper's idea: which of the six slots it fills.

  Attributes:
    name: its key in `config.components`, slots and extras.
    shared: regular expression of the leaves that travel; one owner.
    term: added to the local loss.
    channel: applied in the order of the configuration.
    grouping: `(ServerState, ServerCtx) -> int32 [K]`, the group below `N` of
      each upload; one owner.
    weights: `(ServerCtx, members bool [G, K]) -> float32 [G, K]`, or a dict of
      them by leaf; one owner. A row that sums to less than one leaves the rest
      to the server's model; one that is all zero or not finite is replaced by
      weights by size.
    server_step: applied in the order of the configuration.
    notice: what a user of it must know, printed when a run begins.
    check: `(Population) -> None`, raises an error for clients or public images
      the method cannot work with; not a slot, called once before anything is
      compiled.
    warn: `(metrics of a round, without the component's prefix) -> text`, empty
      unless something is wrong; a run prints the text once.
  """

  name: str
  shared: str | None = None
  term: LocalTerm | None = None
  channel: Channel | None = None
  grouping: Callable[..., Array] | None = None
  weights: Callable[..., Array | dict[str, Array]] | None = None
  server_step: ServerStep | None = None
  notice: str = ''
  check: Callable[[Population], None] | None = None
  warn: Callable[[dict[str, float]], str] | None = None
