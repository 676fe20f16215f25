"""The log of a round: metrics of training and numbers of bytes sent."""

import math
from collections.abc import Sized
from typing import Any

import jax
import numpy as np

from fedreid_jax.core import types
from fedreid_jax.core.types import Flat, Tree
from fedreid_jax.round.compose import Algorithm

Bytes = dict[str, dict[str, int]]


def training(
  sums: dict[str, np.ndarray], num_steps: np.ndarray, valid: np.ndarray
) -> dict[str, Any]:
  """Returns `metrics` and `median_loss` of the valid clients of a round.

  Args:
    sums: sums of metrics over a client's steps, float32 `[lanes]`.
    num_steps: number of steps of each lane, int32 `[lanes]`.
    valid: whether the upload of each lane is valid, bool `[lanes]`.
  """
  if not valid.any():  # means would be undefined
    return {'metrics': {}}
  steps = num_steps[valid]
  means = sums['loss'][valid] / np.maximum(steps, 1)
  return {
    'metrics': {
      k: float(v[valid].sum() / max(steps.sum(), 1)) for k, v in sums.items()
    },
    'median_loss': float(np.median(means)),
  }


def per_client(
  sums: dict[str, np.ndarray], num_steps: np.ndarray, lanes: np.ndarray
) -> dict[str, np.ndarray]:
  """Returns means over each client's steps, in canonical order, float32 `[K]`.

  Args:
    sums: sums of metrics over a client's steps, float32 `[lanes]`.
    num_steps: number of steps of each lane, int32 `[lanes]`.
    lanes: client of each lane, -1 if empty, int32 `[lanes]`.
  """
  used = np.flatnonzero(lanes >= 0)
  used = used[np.argsort(lanes[used])]
  steps = np.maximum(num_steps[used], 1).astype(np.float32)
  return {name: found[used] / steps for name, found in sums.items()}


def of_server(
  entries: Any, num_clients: int
) -> tuple[dict[str, Any], dict[str, float]]:
  """Returns (the server's log on the host, the metrics of its components).

  Args:
    entries: log of `server_round.run`, on a device.
    num_clients: number of clients of the cohort; later rows are empty lanes.
  """
  host = jax.tree.map(np.asarray, entries)
  measured = host.pop('server')
  rows = {
    name: value[:num_clients] if value.ndim else value.item()
    for name, value in host.items()
  }
  return rows, {name: value.item() for name, value in measured.items()}


def wire(
  algorithm: Algorithm,
  server: types.ServerState,
  uploads: types.Upload,
  members: Sized,
  num_clients: int,
  trains: bool,
) -> Bytes:
  """Returns the bytes `up` and `down` of all clients of a round, by content.

  Without training the server broadcasts the model only, and clients do not
  upload it.

  Args:
    algorithm: a federated method.
    server: state of the server.
    uploads: uploads of all lanes, `[lanes, ...]`, or their shapes.
    members: the clients that take part.
    num_clients: `N`.
    trains: whether the clients train.
  """

  def size(tree: Tree, parts: int = 1) -> int:
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(tree)]
    return len(members) * sum(sizes) // parts

  # Empty lanes send nothing: sizes are per lane, and multiplied by the members.
  lanes = uploads.index.shape[0]
  groups = num_clients if algorithm.clustered else 1
  up = {
    name: len(members) * message_bytes(algorithm, message, lanes)
    for name, message in uploads.messages.items()
  }
  down = {'model': size(server.shared, groups)}
  if trains:
    messages = jax.eval_shape(algorithm.messages, server)
    down |= {n: size(x) for n, x in messages.items()}
    for component in algorithm.components:
      counted = component.server and component.server.message_bytes
      if counted:
        state = server.states[component.name]
        down[component.name] = len(members) * counted(state)
    up['model'] = len(members) * model_bytes(algorithm, uploads.shared)
  return {
    'up': {n: x for n, x in up.items() if x},
    'down': {n: x for n, x in down.items() if x},
  }


def model_bytes(algorithm: Algorithm, shared: Flat) -> int:
  """Returns the bytes of the shared parameters in one upload.

  Args:
    algorithm: a federated method, whose transport may compress them.
    shared: shared parameters of all lanes, `[lanes, ...]`.
  """
  one = {
    name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
    for name, x in shared.items()
  }
  for component in algorithm.components:
    if component.transport and component.transport.size:
      return component.transport.size(one)
  return sum(x.size * x.dtype.itemsize for x in one.values())


def message_bytes(algorithm: Algorithm, message: Tree, lanes: int) -> int:
  """Returns the bytes of a message in one upload.

  Args:
    algorithm: a federated method, which may send integers of fewer bits.
    message: messages of all lanes, `[lanes, ...]`.
    lanes: number of lanes.
  """
  leaves = jax.tree.leaves(message)
  for component in algorithm.components:
    if component.summation:
      values = sum(x.size for x in leaves) // lanes
      return math.ceil(values * component.summation.bits / 8)
  return sum(x.size * x.dtype.itemsize for x in leaves) // lanes
