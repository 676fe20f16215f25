"""Images and tasks of a round, as a whole or in segments within a budget."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fedreid_jax.core import types
from fedreid_jax.round.cohort import cohort
from fedreid_jax.round.devices.image_store import ImageStore
from fedreid_jax.round.devices.reading_ahead import ReadingAhead

Part = tuple[types.Table, types.ClientTask]


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
    """Reads all images once if they are resident.

    Args:
      store: store of the clients' images.
      placement: the device of every client.
      lanes_per_device: number of lanes per device.
      budget: limit of the bytes of images on a device, 0 for no limit.
      resident: whether devices keep all images.
      put: function that puts a tree on devices, sharded over lanes.
    """
    self._store, self._placement = store, placement
    self._lanes, self._budget, self._put = lanes_per_device, budget, put
    self.resident = store.resident() if resident else None
    self._ahead = ReadingAhead()

  def read_ahead(self, lanes: np.ndarray, tasks: types.ClientTask) -> None:
    """Begins to read the first segment of local steps of a later wave.

    The segment stays on the devices until the wave begins or other images are
    needed.

    Args:
      lanes: client of each lane, -1 if empty, `[lanes]`.
      tasks: tasks of the wave.
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
      tasks: tasks of the lanes.
      placed: the tasks on devices, None if they are not there yet.
    """
    if self.resident is not None:
      yield self.resident, self._put(tasks) if placed is None else placed
      return
    wanted = lanes, tasks.rows, tasks.valid
    cut = self._ahead.take(wanted) or self._cut(*wanted)
    for first, table, rows, valid in cut:
      start = np.full(len(lanes), first, np.int32)
      part = dataclasses.replace(
        tasks, rows=rows, valid=valid, first_step=start
      )
      yield table, self._put(part)

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
    for first, table, rows, valid in self._cut(
      lanes, tasks.pass_rows, tasks.pass_valid
    ):
      start = np.full(len(lanes), first, np.int32)
      part = dataclasses.replace(
        tasks, pass_rows=rows, pass_valid=valid, first_step=start
      )
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
    step = self._lanes * batch * self._store.image_bytes
    length = steps
    # Two segments are on a device: the next one is copied while one is in use.
    if self._budget:
      length = int(np.clip(self._budget // (2 * step), 1, steps))
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
