"""The log of a round: metrics of training and numbers of bytes sent."""

from collections.abc import Sized
from typing import Any

import jax
import numpy as np

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array, Tree
from fedreid_jax.method.component import MODEL
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
  upload: types.Upload,
  members: Sized,
  num_clients: int,
  trains: bool,
) -> Bytes:
  """Returns the bytes `up` and `down` of all clients of a round, by content.

  Without training the server broadcasts the model only, and clients do not
  upload it.

  Args:
    upload: upload of one client, or its shapes.
  """

  def size(tree: Tree, parts: int = 1) -> int:
    return len(members) * trees.num_bytes(tree) // parts

  groups = num_clients if algorithm.clustered else 1
  up = {
    name: len(members) * sent_bytes(algorithm, name, message)
    for name, message in upload.messages.items()
  }
  down = {MODEL: size(server.shared, groups)}
  if trains:
    messages = jax.eval_shape(algorithm.messages, server)
    down |= {n: size(x) for n, x in messages.items()}
    for component in algorithm.components:
      if 'free_message' in component.properties:
        down[component.name] = 0
    up[MODEL] = len(members) * sent_bytes(algorithm, MODEL, upload.shared)
  return {
    'up': {n: x for n, x in up.items() if x},
    'down': {n: x for n, x in down.items() if x},
  }


def sent_bytes(algorithm: Algorithm, content: str, part: Tree) -> int:
  """Returns the bytes of a part of one upload.

  Args:
    algorithm: a federated method, whose transport may compress the part.
    content: `component.MODEL` or the name of a component with a message.
    part: the part, or its shapes.
  """

  def shape(leaf: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)

  one = jax.tree.map(shape, part)
  for component in algorithm.components:
    if component.transport and component.transport.size:
      return component.transport.size(content, one)
  return trees.num_bytes(one)
