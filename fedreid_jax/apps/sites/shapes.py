"""Shapes of the messages of a method, which is traced but not run."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import prng, types
from fedreid_jax.core.types import Tree
from fedreid_jax.round.compose import Algorithm


def broadcast(
  algorithm: Algorithm,
  variables: types.Flat,
  num_sites: int,
  image_shape: tuple[int, ...],
) -> dict[str, Tree]:
  """Returns the shapes of the arrays that the server sends to a site.

  Args:
    algorithm: a federated method.
    variables: of the model, or their shapes.
    num_sites: `N`.
    image_shape: `(H, W, ch)`.

  Returns:
    `shared` (the parameters of one group) and `messages` (by component).
  """
  sizes = jax.ShapeDtypeStruct((num_sites,), jnp.float32)
  # Real sites have no public images.
  public = jax.ShapeDtypeStruct((0, *image_shape), jnp.uint8)
  server = jax.eval_shape(
    algorithm.init_server, variables, sizes, public, prng.data(0)
  )
  return {
    'shared': jax.eval_shape(lambda x: jax.tree.map(_first, x), server.shared),
    'messages': jax.eval_shape(algorithm.messages, server),
  }


def _first(leaf: types.Array) -> types.Array:
  return leaf[0]


def replies(
  algorithm: Algorithm,
  received: dict[str, Tree],
  image_shape: tuple[int, ...],
  plan_shape: tuple[int, int],
  pass_batch: int,
) -> tuple[types.Upload, types.Upload, dict[str, Any]]:
  """Returns the shapes of the arrays that a site sends.

  Args:
    algorithm: a federated method.
    received: result of `broadcast`.
    image_shape: `(H, W, ch)`.
    plan_shape: `(S, B)` of the longest round.
    pass_batch: images of one step of a pass over all images.

  Returns:
    (upload before round 0, upload of a round, sums of metrics of its steps).
  """
  task = _task(plan_shape, pass_batch)
  state = jax.eval_shape(algorithm.init_client, task.uid, {}, task.seed)
  columns = (_int(1),) * 3
  # One row of each column: no shape of an upload depends on the number of
  # images.
  images = jax.ShapeDtypeStruct((1, *image_shape), jnp.uint8)
  table = types.Table(images, *columns)
  program = algorithm.program

  def whole(trains: bool, sent: Any, own: Any, work: Any, rows: Any) -> Any:
    down = types.Broadcast(
      sent['shared'], sent['messages'], jnp.int32(0), jnp.int32(0)
    )
    carry, sums = program.begin(down, own, work), {}
    if trains:
      carry, sums = program.train(down, rows, carry, work)
    return program.end(down, own, carry, work, trains)[0], sums

  def shaped(trains: bool) -> Any:
    return jax.eval_shape(
      lambda *arguments: whole(trains, *arguments), received, state, task, table
    )

  return shaped(False)[0], *shaped(True)


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
