"""Images and tasks of a round on devices, as a whole or in segments.

A segment has the images of some steps of all lanes, so that two segments are
within a budget. The first segment of a round is read while the round before it
is computed. A process reads only the images of clients on its own devices.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import types
from fedreid_jax.core.types import ClientData, Table
from fedreid_jax.round import cohort, placement

COLUMNS = ('labels', 'cameras', 'modalities')
# Fields of a task: the batches of local steps, and those of a data pass.
STEPS = ('rows', 'valid')
PASS = ('pass_rows', 'pass_valid')
Part = tuple[types.Table, types.ClientTask]


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
    """Returns whether the resident images of every device fit in a budget."""
    return not budget or self._placement.rows * self.image_bytes <= budget

  def resident(self) -> Table:
    """Returns the images of all clients, `[devices * rows, ...]`."""
    placed = self._placement

    def fill(device: int) -> Table:
      block = self._empty(placed.rows)
      for k in np.flatnonzero(placed.device == device):
        self._copy(block, int(placed.first_row[k]), int(k), slice(None))
      return block

    table = self._on_devices(placed.rows, fill)
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

  def described(self, rows: int) -> Table:
    """Returns the shapes of a segment with some images of each device."""
    total = rows * self._placement.num_devices

    column = jax.ShapeDtypeStruct((total,), np.int32)
    images = jax.ShapeDtypeStruct((total, *self._image_shape), np.uint8)
    table = Table(images, **dict.fromkeys(COLUMNS, column))
    return placement.shapes(table, self._sharding)

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

    def array(name: str, shape: tuple[int, ...]) -> Any:
      def shard(index: Any) -> np.ndarray:
        return getattr(fill((index[0].start or 0) // rows), name)

      return jax.make_array_from_callback(shape, self._sharding, shard)

    return types.Table(
      array('images', (total, *self._image_shape)),
      **{name: array(name, (total,)) for name in COLUMNS},
    )


class Segments:
  """Cuts the batches of all lanes into segments of steps."""

  def __init__(
    self,
    store: ImageStore,
    placement: cohort.Placement,
    lanes_per_device: int,
    budget: int,
    resident: bool,
    put: Callable[[Any], Any],
  ):
    """Reads no images yet.

    Args:
      put: function that puts a tree on devices, sharded over lanes.
    """
    self._store, self._placement = store, placement
    self._lanes, self._budget, self._put = lanes_per_device, budget, put
    self._is_resident = resident
    self._ahead = ReadingAhead()

  @functools.cached_property
  def resident(self) -> Table | None:
    """The images of all clients, if they stay on the devices.

    They are read once, on the first access.
    """
    return self._store.resident() if self._is_resident else None

  def read_ahead(self, lanes: np.ndarray, tasks: types.ClientTask) -> None:
    """Begins to read the first segment of local steps of a later wave.

    The segment stays on the devices until the wave begins or other images are
    needed.

    Args:
      lanes: client of each lane, -1 if empty, `[lanes]`.
    """
    # With the segment in use there are two on a device, as within a round.
    wanted = lanes, tasks.rows, tasks.valid
    self._ahead.start(wanted, self._cut(*wanted))

  def training(
    self,
    lanes: np.ndarray,
    tasks: types.ClientTask,
    placed: types.ClientTask | None = None,
  ) -> Iterator[Part]:
    """Yields the images and tasks of each segment of local steps.

    Resident images are one segment.

    Args:
      lanes: client of each lane, -1 if empty, `[lanes]`.
      placed: the tasks on devices, None if they are not there yet.
    """
    if self.resident is not None:
      yield self.resident, self._put(tasks) if placed is None else placed
      return
    wanted = lanes, tasks.rows, tasks.valid
    cut = self._ahead.take(wanted) or self._cut(*wanted)
    yield from self._parts(tasks, cut, *STEPS)

  def passing(
    self,
    lanes: np.ndarray,
    tasks: types.ClientTask,
    placed: types.ClientTask | None = None,
  ) -> Iterator[Part]:
    """Yields the images and tasks of each segment of a data pass.

    `training` describes the arguments.
    """
    if self.resident is not None:
      yield self.resident, self._put(tasks) if placed is None else placed
      return
    # The budget is for two segments, and the pass itself needs both.
    self._ahead.drop()
    cut = self._cut(lanes, tasks.pass_rows, tasks.pass_valid)
    yield from self._parts(tasks, cut, *PASS)

  def described(
    self, placed: types.ClientTask, fields: tuple[str, str]
  ) -> Part:
    """Returns the shapes of a segment and of its tasks.

    Args:
      placed: shapes of the tasks of all lanes, with shardings.
      fields: `STEPS` or `PASS`.
    """
    if self._is_resident:
      return self._store.described(self._placement.rows), placed
    lanes, steps, batch = getattr(placed, fields[0]).shape
    length = self._length(steps, batch)

    def cut(leaf: Any) -> Any:
      shape = jax.ShapeDtypeStruct((lanes, length, batch), leaf.dtype)
      return placement.described(shape, leaf.sharding)

    table = self._store.described(self._lanes * length * batch)
    own = {name: cut(getattr(placed, name)) for name in fields}
    return table, dataclasses.replace(placed, **own)

  def _length(self, steps: int, batch: int) -> int:
    """Returns the number of steps of a segment; two segments fit a budget."""
    # Two segments are on a device: the next one is copied while one is in use.
    if not self._budget:
      return steps
    step = self._lanes * batch * self._store.image_bytes
    return int(np.clip(self._budget // (2 * step), 1, steps))

  def _parts(
    self, tasks: types.ClientTask, cut: Iterator[Any], *fields: str
  ) -> Iterator[Part]:
    for first, table, *batches in cut:
      start = np.full(len(tasks.index), first, np.int32)
      own = dict(zip(fields, batches, strict=True))
      part = dataclasses.replace(tasks, first_step=start, **own)
      yield table, self._put(part)

  def _cut(
    self, lanes: np.ndarray, rows: np.ndarray, valid: np.ndarray
  ) -> Iterator[tuple[int, types.Table, np.ndarray, np.ndarray]]:
    """Cuts batches into segments so that two segments fit in the budget.

    Args:
      lanes: client of each lane, -1 if empty, `[lanes]`.
      rows: rows of the resident table, int32 `[lanes, S, B]`.
      valid: whether each row is an image and not padding, bool `[lanes, S, B]`;
        a client with fewer than `S` batches has them at the front.

    Yields:
      (first batch, table of the images, rows of that table, valid).
    """
    steps, batch = rows.shape[1:]
    length = self._length(steps, batch)
    first_row = self._placement.first_row[np.maximum(lanes, 0)]
    own = np.maximum(rows - first_row[:, None, None], 0)
    for first in range(0, int(valid.any(axis=2).sum(axis=1).max()), length):
      # The last segment is padded, so that all segments have one program.
      cut = np.zeros((len(lanes), length, batch), np.int32)
      real = np.zeros(cut.shape, bool)
      span = slice(first, first + length)
      size = own[:, span].shape[1]
      cut[:, :size], real[:, :size] = own[:, span], valid[:, span]
      # No images are read for a client without batches in this segment.
      busy = np.where(real.any(axis=(1, 2)), lanes, -1)
      table = self._store.segment(busy, cut.reshape(len(lanes), -1))
      # A device indexes its part of the table from 0.
      at = np.arange(cut.size, dtype=np.int32).reshape(cut.shape)
      yield first, table, at % (self._lanes * length * batch), real


class _Ahead(NamedTuple):
  """A segment that is being read.

  Attributes:
    wanted: arrays that determine the segments.
    first: the first segment in a list, which is empty if there are no segments.
    rest: the other segments, which are read on demand.
  """

  wanted: Any
  first: futures.Future[list[Any]]
  rest: Iterator[Any]


class ReadingAhead:
  """Reads at most one segment ahead, in a separate thread."""

  def __init__(self) -> None:
    """Starts the thread pool; no segment is read yet."""
    self._thread = futures.ThreadPoolExecutor(1, 'images')
    self._ahead: _Ahead | None = None

  def start(self, wanted: Any, segments: Iterator[Any]) -> None:
    """Begins to read the first of some segments."""
    self.drop()
    read = self._thread.submit(lambda: list(itertools.islice(segments, 1)))
    self._ahead = _Ahead(wanted, read, segments)

  def drop(self) -> None:
    """Waits for a segment that is being read ahead, and drops it."""
    self.take(())

  def take(self, wanted: Any) -> Iterator[Any] | None:
    """Returns the segments, None if these were not read ahead."""
    ahead, self._ahead = self._ahead, None
    if ahead is None:
      return None
    # This waits for the thread. Its error is not raised, as whoever reads these
    # segments again meets the error again.
    failed = ahead.first.exception()
    if failed or not _same(ahead.wanted, wanted):
      return None
    return _each(ahead.first.result(), ahead.rest)


def _same(one: Any, other: Any) -> bool:
  if jax.tree.structure(one) != jax.tree.structure(other):
    return False
  return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def _each(first: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
  # `itertools.chain` would keep the first segment in memory until the last one
  # is read.
  while first:
    yield first.pop()
  yield from rest
