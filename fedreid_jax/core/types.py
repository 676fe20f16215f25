"""Types that pass between host and device, client and server, and components.

Shape letters, used in every docstring of the package:

  N clients             K cohort (clients of a round)   G groups (models kept)
  S steps of a round    B batch                         H, W, ch image
  D feature             C identities (padded)           M images of a table
  Q query               P gallery

Trees of variables are flat dicts, `{'params/classifier/kernel': array}`: a
regular expression over the keys selects the shared parameters, and a method may
give each leaf a weight of its own. Distances are not squared unless a name says
so, angles are `1 - cos`, learning rates are per step.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

Array = jax.Array
Leaf = Any  # an array of JAX, or of NumPy while it is on the host
Tree = Any
Flat = dict[str, Any]
Metrics = dict[str, Array]


class Outputs(NamedTuple):
  """Model outputs for a batch, float32 whatever the model computes in.

  Attributes:
    feature: pooled backbone feature before the neck, `[B, D]`.
    embedding: feature after the neck, the one that is ranked, `[B, D]`.
    logits: identity scores, padded identities at a large negative, `[B, C]`.
    extras: outputs that only some networks have, by name.
  """

  feature: Array
  embedding: Array
  logits: Array
  extras: dict[str, Any] = {}


class Model(NamedTuple):
  """A network as pure functions over a flat dict of variables.

  Attributes:
    init: `(key) -> variables`.
    apply: `(variables, images [B, H, W, ch], train=, key=, mask=,
      num_identities=, modalities=, labels=) -> (Outputs, batch_stats)`;
      the latter are the new running statistics, the given ones when `train` is
      false.
    measure: `(variables, images [B, H, W, ch], mask=, num_identities=,
      modalities=) -> (Outputs, moments by layer)`; evaluation mode, but every
      batch normalisation uses the moments of these images
      (`core.batch_stats`).
    classify: `(variables, embedding [B, D], num_identities) -> logits [B, C]`.
  """

  init: Callable[..., Flat]
  apply: Callable[..., tuple[Outputs, Flat]]
  measure: Callable[..., tuple[Outputs, dict[str, Any]]]
  classify: Callable[..., Array]


class ClientData(NamedTuple):
  """One client's images, on the host.

  Attributes:
    name: unique; its hash is the root of the client's random numbers.
    images: `() -> uint8 [M, H, W, ch]`, called only where the client runs.
    labels: identity within the client's label space, int32 `[M]`.
    cameras: int32 `[M]`.
    modalities: 0 visible, 1 infrared, int32 `[M]`.
    num_identities: columns of the classifier that are its own.
  """

  name: str
  images: Callable[[], np.ndarray]
  labels: np.ndarray
  cameras: np.ndarray
  modalities: np.ndarray
  num_identities: int

  @property
  def num_images(self) -> int:
    """Returns `M`."""
    return len(self.labels)


class Plan(NamedTuple):
  """The images of the batches of one client's round.

  Attributes:
    rows: positions among the client's images, int32 `[S, B]`.
    valid: which of them are real, bool `[S, B]`.
  """

  rows: np.ndarray
  valid: np.ndarray


@struct.dataclass
class Table:
  """Images of one device's clients, one after another.

  Attributes:
    images: uint8 `[M, H, W, ch]`.
    labels: identity within its client's label space, int32 `[M]`.
    cameras: int32 `[M]`.
    modalities: 0 visible, 1 infrared, int32 `[M]`.
  """

  images: Leaf
  labels: Leaf
  cameras: Leaf
  modalities: Leaf


@struct.dataclass
class ClientTask:
  """The work of one client in one round.

  Attributes:
    index: place of the client in canonical order, -1 for padding, int32.
    uid: hash of the client's name, the root of its random keys, uint32.
    group: which of the server's models it starts from, int32.
    num_examples: images it trains on, its weight in a mean, float32.
    num_identities: how many of the `C` columns are its own, int32.
    num_steps: local steps of the whole round, int32.
    first_step: how many of them, or of the batches of a pass, came before this
      table, int32.
    rows: rows of the table in each batch from there on, int32 `[S, B]`.
    valid: which of them are real, bool `[S, B]`.
    pass_rows: rows of the table in each batch of a pass over all of its images,
      in mixed order, int32 `[P, B']`.
    pass_valid: which of them are real, bool `[P, B']`.
  """

  index: Leaf
  uid: Leaf
  group: Leaf
  num_examples: Leaf
  num_identities: Leaf
  num_steps: Leaf
  first_step: Leaf
  rows: Leaf
  valid: Leaf
  pass_rows: Leaf
  pass_valid: Leaf


@struct.dataclass
class Broadcast:
  """The server's message to a client.

  Attributes:
    shared: shared parameters of the client's group.
    messages: of the components' server hooks, by name.
    round: global round, int32.
  """

  shared: Flat
  messages: dict[str, Tree]
  round: Array


@struct.dataclass
class Upload:
  """A client's message to the server; stacked to `[K, ...]` there.

  Attributes:
    index: the client's place in canonical order, -1 for padding, int32.
    shared: values (not differences) of the shared parameters.
    num_examples: float32.
    num_steps: int32.
    finite: whether all that the client keeps is finite, bool.
    messages: of the components' client hooks, by name.
  """

  index: Array
  shared: Flat
  num_examples: Array
  num_steps: Array
  finite: Array
  messages: dict[str, Tree]


@struct.dataclass
class ClientState:
  """State of a client between rounds; stacked to `[N, ...]` on the host.

  Attributes:
    personal: leaves that are not shared.
    states: of the components, by name.
    opt_state: optimiser state, empty when it is reset every round.
  """

  personal: Flat
  states: dict[str, Tree]
  opt_state: Tree


@struct.dataclass
class ServerState:
  """State of the server.

  Attributes:
    shared: shared parameters, one model a group, `[G, ...]`.
    groups: the group of every client, int32 `[N]`.
    states: of the components, by name.
  """

  shared: Flat
  groups: Array
  states: dict[str, Tree]


class Batch(NamedTuple):
  """One augmented batch.

  Attributes:
    images: float32 `[B, H, W, ch]`, normalised.
    labels: int32 `[B]`.
    cameras: int32 `[B]`.
    modalities: int32 `[B]`.
    valid: real rows, bool `[B]`.
  """

  images: Array
  labels: Array
  cameras: Array
  modalities: Array
  valid: Array
