"""Features of many images, sharded over devices, the tail padded."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat


def make_extractor(
  model: types.Model,
  view: Callable[[Array], Array],
  mesh: Mesh,
  *,
  batch: int,
  flip: bool,
  feature: str,
) -> Callable[[Flat, np.ndarray], np.ndarray]:
  """Builds `(variables, uint8 images [M, H, W, ch]) -> float32 [M, D]`.

  Every device always sees `batch` images, so the features are the same bits on
  any number of devices.

  Args:
    model: network.
    view: test view.
    mesh: devices.
    batch: images of one device at a time.
    flip: average the features of an image and its mirror image.
    feature: 'embedding' after the neck, 'feature' before it, or 'logits'.
  """
  axis = mesh.axis_names[0]
  split, whole = NamedSharding(mesh, P(axis)), NamedSharding(mesh, P())

  def one(variables, images):
    def embed(x):
      outputs, _ = model.apply(variables, view(x), train=False)
      return getattr(outputs, feature)

    if not flip:
      return embed(images)
    return 0.5 * (embed(images) + embed(images[:, :, ::-1]))

  extract = jax.jit(
    jax.shard_map(
      one,
      mesh=mesh,
      in_specs=(P(), P(axis)),
      out_specs=P(axis),
      check_vma=False,
    ),
    out_shardings=whole,
  )
  chunk = batch * mesh.devices.size

  def run(variables: Flat, images: np.ndarray) -> np.ndarray:
    parts = []
    for first in range(0, len(images), chunk):
      part = np.asarray(images[first : first + chunk])
      size = len(part)
      part = np.pad(part, [(0, chunk - size)] + [(0, 0)] * (part.ndim - 1))
      on_devices = jax.make_array_from_callback(
        part.shape, split, lambda index, part=part: part[index]
      )
      parts.append((extract(variables, on_devices), size))
    return np.concatenate([np.asarray(f)[:size] for f, size in parts])

  return run
