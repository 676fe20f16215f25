"""Features of images, sharded over devices, with a padded last batch."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int, UInt8

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat


def make_embedding(
  model: types.Model,
  view: Callable[[UInt8[Array, 'M H W ch']], Float[Array, 'M H W ch']],
  *,
  flip: bool,
  feature: str,
) -> Callable[..., Float[Array, 'M D']]:
  """Builds the pure function `(variables, uint8 images [M, H, W, ch],
  modalities [M] or None) -> float32 [M, D]` of one device.

  Args:
    model: network.
    view: test transform.
    flip: average the features of an image and its mirror image.
    feature: 'embedding' after the neck, 'feature' before it, or 'logits'.
  """

  def embedding(
    variables: Flat,
    images: UInt8[Array, 'M H W ch'],
    modalities: Int[Array, ' M'] | None = None,
  ) -> Float[Array, 'M D']:
    def embed(x):
      outputs, _ = model.apply(
        variables, view(x), train=False, modalities=modalities
      )
      return getattr(outputs, feature)

    if not flip:
      return embed(images)
    return 0.5 * (embed(images) + embed(jnp.flip(images, 2)))

  return embedding


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

  Args:
    model: network.
    view: test transform.
    mesh: devices.
    batch: number of images on each device at a time.
    flip: average the features of an image and its mirror image.
    feature: 'embedding' after the neck, 'feature' before it, or 'logits'.
  """
  axis = mesh.axis_names[0]
  split, whole = NamedSharding(mesh, P(axis)), NamedSharding(mesh, P())

  one = make_embedding(model, view, flip=flip, feature=feature)
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
    # Every device always gets `batch` images, so the features have the same
    # bits on any number of devices, and one program is compiled.
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


def of_each(
  extract: Callable[..., Float[np.ndarray, 'M D']],
  models: Sequence[Flat],
  images: UInt8[np.ndarray, 'M H W ch'],
  modalities: Int[np.ndarray, ' M'] | None = None,
) -> Float[np.ndarray, 'M D']:
  """Returns features of images by the model of each image's modality.

  Args:
    extract: `(variables, images, modalities) -> features [M, D]`.
    models: variables for all images, or one for each of modality 0 and 1.
    images: pixels.
    modalities: 0 visible, 1 infrared; without them all images are visible.
  """
  if len(models) == 1 or modalities is None:
    return extract(models[0], images, modalities)
  rows = [np.flatnonzero(modalities == kind) for kind in range(len(models))]
  found = [
    extract(variables, images[own], modalities[own])
    for variables, own in zip(models, rows, strict=True)
    if len(own)
  ]
  # The inverse permutation restores the order of the images.
  return np.concatenate(found)[np.argsort(np.concatenate(rows))]
