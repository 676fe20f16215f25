"""Batches of the images of a table."""

from collections.abc import Callable

from fedreid_jax.core import types
from fedreid_jax.core.types import Array


def gather(
  table: types.Table,
  rows: Array,
  valid: Array,
  transform: Callable[[Array], Array],
) -> types.Batch:
  """Returns a batch of a table's images.

  Args:
    table: table of images.
    rows: rows of the table, int32 `[B]`.
    valid: whether each row is an image and not padding, bool `[B]`.
    transform: `(uint8 images) -> float32 images`.
  """
  return types.Batch(
    images=transform(table.images[rows]),
    labels=table.labels[rows],
    cameras=table.cameras[rows],
    modalities=table.modalities[rows],
    valid=valid,
  )
