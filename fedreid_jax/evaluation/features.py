"""Features of images, sharded over devices, with a padded last batch."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int, UInt8

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat


def make_extractor(
  model: types.Model,
  view: Callable[[UInt8[Array, 'M H W ch']], Float[Array, 'M H W ch']],
  mesh: Mesh,
  *,
  batch: int,
  flip: bool,
  feature: str,
) -> Callable[..., Float[np.ndarray, 'M D']]:
  """Builds `(variables, uint8 images [M, H, W, ch], modalities [M] or None) ->
  float32 [M, D]`; without modalities all images are visible.

  Every device always gets `batch` images, so the features have the same bits on
  any number of devices.

  Args:
    model: network.
    view: test transform.
    mesh: devices.
    batch: images of one device at a time.
    flip: average the features of an image and its mirror image.
    feature: 'embedding' after the neck, 'feature' before it, or 'logits'.
  """
  axis = mesh.axis_names[0]
  split, whole = NamedSharding(mesh, P(axis)), NamedSharding(mesh, P())

  def one(variables, images, modalities):
    def embed(x):
      outputs, _ = model.apply(
        variables, view(x), train=False, modalities=modalities
      )
      return getattr(outputs, feature)

    if not flip:
      return embed(images)
    return 0.5 * (embed(images) + embed(images[:, :, ::-1]))

  extract = jax.jit(
    jax.shard_map(
      one,
      mesh=mesh,
      in_specs=(P(), P(axis), P(axis)),
      out_specs=P(axis),
      check_vma=False,
    ),
    out_shardings=whole,
  )
  chunk = batch * mesh.devices.size

  def put(part: np.ndarray):
    size = len(part)
    part = np.pad(part, [(0, chunk - size)] + [(0, 0)] * (part.ndim - 1))
    return jax.make_array_from_callback(
      part.shape, split, lambda index: part[index]
    )

  def run(
    variables: Flat,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M D']:
    if modalities is None:
      modalities = np.zeros(len(images), np.int32)
    parts = []
    for first in range(0, len(images), chunk):
      part = np.asarray(images[first : first + chunk])
      kinds = modalities[first : first + chunk]
      parts.append((extract(variables, put(part), put(kinds)), len(part)))
    return np.concatenate([np.asarray(f)[:size] for f, size in parts])

  return run
