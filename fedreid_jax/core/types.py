"""Types that host and device, client and server, and components share.

Shapes in annotations and docstrings of the package use these letters:

  N clients             K cohort (clients of a round)   G groups (server models)
  S steps of a round    B batch                         H, W, ch image
  D feature             C identities (padded)           M images of a table
  Q query               P gallery

Trees of variables are flat dicts, `{'params/classifier/kernel': array}`: a
regular expression over the keys selects the shared parameters, and a method can
have different weights for each parameter. A distance is not squared unless its
name says so, an angle is `1 - cos`, and a learning rate is per step.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from flax import struct
from jaxtyping import Bool, Float32, Int32, Real, UInt8

Array = jax.Array
Number = float | int | Real[Array, '']  # may be traced
Leaf = Any  # an array of JAX on a device, or of NumPy on the host
Tree = Any
Flat = dict[str, Any]
Metrics = dict[str, Array]
# Outputs of a network by which images are ranked: after or before the neck.
Feature = Literal['embedding', 'feature']


class Outputs(NamedTuple):
  """Outputs of a network for a batch, float32 in every computing precision.

  Attributes:
    feature: pooled backbone feature before the neck.
    embedding: feature after the neck, by which galleries are ranked.
    logits: identity scores; padded identities have large negative ones.
    extras: outputs that only some networks have, by name.
  """

  feature: Float32[Array, 'B D']
  embedding: Float32[Array, 'B D2']
  logits: Float32[Array, 'B C']
  extras: dict[str, Any] = {}


class Model(NamedTuple):
  """A network as pure functions over a flat dict of variables.

  Attributes:
    init: `(key) -> variables`.
    apply: `(variables, images [B, H, W, ch], train=, key=, mask=,
      num_identities=, modalities=, labels=, cameras=) -> (Outputs,
      batch_stats)`; a network without embeddings of cameras ignores `cameras`;
      `batch_stats` are the new running statistics, or the given ones if `train`
      is false. With T images for each row of the other arguments, these are the
      frames of its tracklet.
    measure: `(variables, images [B, H, W, ch], mask=, num_identities=,
      modalities=, cameras=) -> (Outputs, moments by layer)`; evaluation mode,
      but every batch normalisation uses the moments of these images
      (`method.batch_stats`).
    classify: `(variables, embedding [B, D], num_identities) -> logits [B, C]`.
  """

  init: Callable[..., Flat]
  apply: Callable[..., tuple[Outputs, Flat]]
  measure: Callable[..., tuple[Outputs, dict[str, Any]]]
  classify: Callable[..., Array]


class ClientData(NamedTuple):
  """One client's images, on the host.

  Attributes:
    name: unique name; its hash determines the client's random keys.
    images: returns the pixels. It is called only in a process that runs the
      client, perhaps in another thread than the one that reads targets.
    labels: identity within the client's label space; index of the image for a
      client without labels.
    cameras: number of the camera of each image.
    modalities: 0 visible, 1 infrared.
    num_identities: number of the client's columns of the classifier.
    identities: of a client without labels, the identities that its labels do
      not show, for metrics only; None for a client with labels.
    tracklets: number of the tracklet of each frame, whose frames follow each
      other in time; None for images that are no frames.
  """

  name: str
  images: Callable[[], UInt8[np.ndarray, 'M H W ch']]
  labels: Int32[np.ndarray, ' M']
  cameras: Int32[np.ndarray, ' M']
  modalities: Int32[np.ndarray, ' M']
  num_identities: int
  identities: Int32[np.ndarray, ' M'] | None = None
  tracklets: Int32[np.ndarray, ' M'] | None = None

  @property
  def labelled(self) -> bool:
    """Whether `labels` are identities."""
    return self.identities is None

  @property
  def num_images(self) -> int:
    """Number of training images, `M`."""
    return len(self.labels)


class Plan(NamedTuple):
  """The images of the batches of one client's round.

  Attributes:
    rows: indices of the client's images.
    valid: whether each row is an image and not padding.
  """

  rows: Int32[np.ndarray, 'S B']
  valid: Bool[np.ndarray, 'S B']


@struct.dataclass
class Table:
  """Concatenated images of the clients of one device.

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
    index: canonical index of the client, -1 for padding, int32.
    uid: hash of the client's name, which determines its random keys, uint32.
    seed: seed of the run for these keys (`prng.data`), uint32 `[2]`, or `[10]`
      with words of the run's secret.
    group: index of the server model from which the client starts, int32.
    drawn: position of the client in the order of sampling, int32.
    staleness: updates of the server since it sent the client's model, int32;
      0 if clients train in rounds.
    num_examples: number of training images, the client's weight in a mean,
      float32.
    num_identities: number of the client's columns among `C`, int32.
    num_steps: number of local steps in the whole round, int32.
    first_step: number of steps, or of batches of a pass, before this table,
      int32.
    rows: rows of the table in each batch from `first_step`, int32 `[S, B]`.
    valid: whether each row is real, bool `[S, B]`.
    pass_rows: rows of the table in each batch of a pass over all of its images,
      in random order, int32 `[P, B']`.
    pass_valid: whether each of these rows is real, bool `[P, B']`.
  """

  index: Leaf
  uid: Leaf
  seed: Leaf
  group: Leaf
  drawn: Leaf
  staleness: Leaf
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
    messages: messages of the components' server hooks, by name.
    round: global round, int32.
    staleness: updates of the server since it sent the client's model, int32.
  """

  shared: Flat
  messages: dict[str, Tree]
  round: Array
  staleness: Array


@struct.dataclass
class Upload:
  """A client's message to the server, which stacks them to `[K, ...]`.

  Attributes:
    index: canonical index of the client, -1 for padding, int32.
    shared: values (not differences) of the shared parameters.
    num_examples: number of training images, float32.
    num_steps: number of local steps, int32.
    finite: whether the state that the client keeps is finite, bool.
    messages: messages of the components' client hooks, by name.
    lost: whether the client keeps the state from before the round although the
      server takes the upload for a valid one, bool; () if it never does. It is
      not sent.
  """

  index: Array
  shared: Flat
  num_examples: Array
  num_steps: Array
  finite: Array
  messages: dict[str, Tree]
  lost: Array | tuple[()] = ()


@struct.dataclass
class ClientState:
  """State of a client between rounds, `[N, ...]` for all clients on the host.

  Attributes:
    personal: personal parameters and running statistics.
    states: states of the components, by name.
    opt_state: optimiser state, empty if it is reset every round.
  """

  personal: Flat
  states: dict[str, Tree]
  opt_state: Tree


@struct.dataclass
class ServerState:
  """State of the server.

  Attributes:
    shared: shared parameters, one model per group, `[G, ...]`.
    groups: the group of every client, int32 `[N]`.
    states: states of the components, by name.
  """

  shared: Flat
  groups: Array
  states: dict[str, Tree]


class Batch(NamedTuple):
  """One augmented batch.

  Attributes:
    images: normalised images; if a row is a tracklet, its T frames one after
      another, `[B T, H, W, ch]`.
    labels: identity within the client's label space.
    cameras: number of the camera of each image.
    modalities: 0 visible, 1 infrared.
    valid: whether each row is an image and not padding.
  """

  images: Float32[Array, 'B H W ch']
  labels: Int32[Array, ' B']
  cameras: Int32[Array, ' B']
  modalities: Int32[Array, ' B']
  valid: Bool[Array, ' B']
