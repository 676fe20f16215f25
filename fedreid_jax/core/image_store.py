"""Client images onto devices: whole, or one segment of a round at a time.

A process reads only the images of clients that live on its own devices.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import cohort, types
from fedreid_jax.core.types import ClientData, Table

COLUMNS = ('labels', 'cameras', 'modalities')


class Shelf:
  """Images of all clients, put on devices on request."""

  def __init__(
    self,
    clients: Sequence[ClientData],
    placement: cohort.Placement,
    sharding: NamedSharding,
    image_shape: tuple[int, int, int],
  ):
    """Remembers where images go; reads none yet."""
    self._clients, self._placement = clients, placement
    self._sharding, self._image_shape = sharding, image_shape
    self._images = functools.cache(lambda k: self._clients[k].images())

  @property
  def image_bytes(self) -> int:
    """Returns the size of one image."""
    return int(np.prod(self._image_shape))

  def resident(self) -> Table:
    """Returns every client's images, `[devices * rows, ...]`."""
    homes = self._placement

    def fill(device: int) -> Table:
      block = self._empty(homes.rows)
      for k in np.flatnonzero(homes.device == device):
        self._copy(block, int(homes.first_row[k]), int(k), slice(None))
      return block

    table = self._on_devices(homes.rows, fill)
    self._images.cache_clear()  # they are on the device now
    return table

  def segment(self, seats: np.ndarray, rows: np.ndarray) -> Table:
    """Returns the given images of each place's client, one after another.

    Args:
      seats: client of each place, -1 where empty, `[places]`.
      rows: which of its images, int32 `[places, R]`.
    """
    slots = len(seats) // self._placement.num_devices
    width = rows.shape[1]

    def fill(device: int) -> Table:
      block = self._empty(slots * width)
      for slot in range(slots):
        place = device * slots + slot
        if seats[place] >= 0:
          self._copy(block, slot * width, int(seats[place]), rows[place])
      return block

    return self._on_devices(slots * width, fill)

  def _empty(self, rows: int) -> Table:
    columns = {name: np.zeros(rows, np.int32) for name in COLUMNS}
    return Table(np.zeros((rows, *self._image_shape), np.uint8), **columns)

  def _copy(self, block: Table, first: int, k: int, rows) -> None:
    images = self._images(k)[rows]
    block.images[first : first + len(images)] = images
    for name in COLUMNS:
      column = getattr(self._clients[k], name)[rows]
      getattr(block, name)[first : first + len(images)] = column

  def _on_devices(self, rows: int, fill: Callable[[int], Table]) -> Table:
    fill = functools.cache(fill)
    total = rows * self._placement.num_devices

    def array(name: str, shape: tuple[int, ...]) -> jax.Array:
      return jax.make_array_from_callback(
        shape,
        self._sharding,
        lambda index: getattr(fill((index[0].start or 0) // rows), name),  # pyright: ignore
      )

    return types.Table(
      array('images', (total, *self._image_shape)),
      **{name: array(name, (total,)) for name in COLUMNS},
    )
