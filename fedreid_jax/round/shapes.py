"""Shapes of what a client receives and sends, found by tracing its program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import prng, trees, types
from fedreid_jax.core.types import Metrics, Tree
from fedreid_jax.round.compose import Algorithm


def received(
  algorithm: Algorithm, server: types.ServerState
) -> dict[str, Tree]:
  """Returns the shapes of what every client receives.

  Args:
    server: state of the server, or its shapes.

  Returns:
    `shared`, the parameters of one group, and `messages`.
  """
  return {
    'shared': jax.eval_shape(lambda x: trees.rows(x, 0), server.shared),
    'messages': jax.eval_shape(algorithm.messages, server),
  }


def upload(
  algorithm: Algorithm,
  server: types.ServerState,
  plan_shape: tuple[int, int],
  pass_batch: int,
  trains: bool,
) -> types.Upload:
  """Returns the shapes of the upload of one client.

  Args:
    server: state of the server, or its shapes.
    plan_shape: `(S, B)` of the longest round.
    pass_batch: number of images of one step of a pass over all images.
    trains: whether the client trains; false before round 0.
  """
  program, task = algorithm.program, _task(plan_shape, pass_batch)

  def sent(down: Any, own: Any, work: Any) -> types.Upload:
    broadcast = _broadcast(down)
    carry = program.begin(broadcast, own, work)
    return program.end(broadcast, own, carry, work, trains)[0]

  return jax.eval_shape(sent, *_given(algorithm, server, task), task)


def metrics(
  algorithm: Algorithm,
  server: types.ServerState,
  image_shape: tuple[int, ...],
  plan_shape: tuple[int, int],
  pass_batch: int,
) -> Metrics:
  """Returns the shapes of the sums of metrics over the steps of one client.

  Args:
    image_shape: `(H, W, ch)`.
  """
  program, task = algorithm.program, _task(plan_shape, pass_batch)
  # No shape depends on the number of images.
  images = jax.ShapeDtypeStruct((1, *image_shape), jnp.uint8)
  table = types.Table(images, *(_int(1),) * 3)

  def sums(down: Any, own: Any, work: Any, rows: Any) -> Metrics:
    broadcast = _broadcast(down)
    carry = program.begin(broadcast, own, work)
    return program.train(broadcast, rows, carry, work)[1]

  return jax.eval_shape(sums, *_given(algorithm, server, task), task, table)


def _given(algorithm: Algorithm, server: types.ServerState, task: Any) -> Any:
  """Returns what a client receives, and its state."""
  state = jax.eval_shape(algorithm.init_client, task.uid, {}, task.seed)
  return received(algorithm, server), state


def _broadcast(down: dict[str, Any]) -> types.Broadcast:
  zero = jnp.int32(0)
  return types.Broadcast(down['shared'], down['messages'], zero, zero)


def _int(*shape: int) -> Any:
  return jax.ShapeDtypeStruct(shape, jnp.int32)


def _task(plan: tuple[int, int], pass_batch: int) -> types.ClientTask:
  seed = prng.data(0)
  return types.ClientTask(
    index=_int(),
    uid=jax.ShapeDtypeStruct((), np.uint32),
    seed=jax.ShapeDtypeStruct(seed.shape, seed.dtype),
    group=_int(),
    drawn=_int(),
    staleness=_int(),
    num_examples=jax.ShapeDtypeStruct((), np.float32),
    num_identities=_int(),
    num_steps=_int(),
    first_step=_int(),
    rows=_int(*plan),
    valid=jax.ShapeDtypeStruct(plan, np.bool_),
    pass_rows=_int(1, pass_batch),
    pass_valid=jax.ShapeDtypeStruct((1, pass_batch), np.bool_),
  )
