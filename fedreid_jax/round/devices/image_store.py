"""Images of clients on devices: all of them, or one segment of a round.

A process reads only the images of the clients on its own devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import types
from fedreid_jax.core.types import ClientData, Table
from fedreid_jax.round.cohort import cohort

COLUMNS = ('labels', 'cameras', 'modalities')


class ImageStore:
  """Images of all clients, transferred to devices on request."""

  def __init__(
    self,
    clients: Sequence[ClientData],
    placement: cohort.Placement,
    sharding: NamedSharding,
    image_shape: tuple[int, int, int],
    kept: int,
  ):
    """Stores the placement; images are read later.

    Args:
      clients: all clients, in canonical order.
      placement: the device of every client.
      sharding: sharding over the images of all devices.
      image_shape: `(H, W, ch)`.
      kept: number of clients whose images stay in the memory of the host after
        they were read.
    """
    self._clients, self._placement = clients, placement
    self._sharding, self._image_shape = sharding, image_shape
    self._images = functools.lru_cache(kept)(self._read)

  @property
  def image_bytes(self) -> int:
    """Bytes of one image, of type uint8."""
    return int(np.prod(self._image_shape))

  def fits(self, budget: int) -> bool:
    """Returns whether the resident images of every device fit in a budget.

    Args:
      budget: limit of the bytes of images on a device, 0 for no limit.
    """
    return not budget or self._placement.rows * self.image_bytes <= budget

  def resident(self) -> Table:
    """Returns the images of all clients, `[devices * rows, ...]`."""
    placement = self._placement

    def fill(device: int) -> Table:
      block = self._empty(placement.rows)
      for k in np.flatnonzero(placement.device == device):
        self._copy(block, int(placement.first_row[k]), int(k), slice(None))
      return block

    table = self._on_devices(placement.rows, fill)
    self._images.cache_clear()  # the images are on the devices now
    return table

  def segment(self, lanes: np.ndarray, rows: np.ndarray) -> Table:
    """Returns the concatenation of the selected images of each lane's client.

    Args:
      lanes: client of each lane, -1 if empty, `[lanes]`.
      rows: indices of the client's images, int32 `[lanes, R]`.
    """
    per_device = len(lanes) // self._placement.num_devices
    width = rows.shape[1]

    def fill(device: int) -> Table:
      block = self._empty(per_device * width)
      for i in range(per_device):
        lane = device * per_device + i
        if lanes[lane] >= 0:
          self._copy(block, i * width, int(lanes[lane]), rows[lane])
      return block

    return self._on_devices(per_device * width, fill)

  def _read(self, client: int) -> np.ndarray:
    return self._clients[client].images()

  def _empty(self, rows: int) -> Table:
    columns = {name: np.zeros(rows, np.int32) for name in COLUMNS}
    return Table(np.zeros((rows, *self._image_shape), np.uint8), **columns)

  def _copy(self, block: Table, first: int, k: int, rows: Any) -> None:
    images = self._images(k)[rows]
    block.images[first : first + len(images)] = images
    for name in COLUMNS:
      column = getattr(self._clients[k], name)[rows]
      getattr(block, name)[first : first + len(images)] = column

  def _on_devices(self, rows: int, fill: Callable[[int], Table]) -> Table:
    # JAX asks for the shards of each column separately, and only for devices of
    # this process. The cache reads the images of a device once.
    fill = functools.cache(fill)
    total = rows * self._placement.num_devices

    def array(name: str, shape: tuple[int, ...]) -> jax.Array:
      def shard(index: Any) -> np.ndarray:
        return getattr(fill((index[0].start or 0) // rows), name)

      return jax.make_array_from_callback(shape, self._sharding, shard)

    return types.Table(
      array('images', (total, *self._image_shape)),
      **{name: array(name, (total,)) for name in COLUMNS},
    )
