"""The lanes of a round, in waves that fit in the memory of a device.

A client whose images are resident runs on the device that has them. Other
clients run on the device with the least work in the process that has their
states. If uploads are added, a round is cut into waves, which are
calls of the same programs over some lanes of every device. The memory of a
device then depends on the number of lanes of a wave, and not on the number of
clients of a round.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedreid_jax.round.cohort import cohort

# Clients are assigned to devices by longest processing time.
#
# A device runs its clients one after another, so a round takes as long as the
# device with the most steps. Clients are assigned in the order of decreasing
# cost, each to the device with the least work (Graham, 1969: at most 4/3 of the
# shortest round), as pfl-research does by numbers of images (Granqvist et al.,
# 2024).

# Lanes of a device over an equal share of the clients: a device whose clients
# have few steps runs more of them. Empty lanes take no step.
SLACK = 1.5


def num_lanes(cohort: int, num_devices: int) -> int:
  """Returns the number of lanes of a device.

  Args:
    cohort: largest number of clients of a round, `K`.
    num_devices: number of devices.
  """
  if num_devices == 1:
    return cohort
  return min(cohort, math.ceil(SLACK * cohort / num_devices))


def assign(
  members: Sequence[int] | np.ndarray,
  costs: Sequence[float] | np.ndarray,
  num_devices: int,
  lanes: int,
) -> np.ndarray:
  """Returns the client in each lane, -1 if empty, int32 `[devices * lanes]`.

  The lanes of a device contain its clients in canonical order. The result does
  not depend on the order of the members.

  Args:
    members: canonical indices of the clients, `[K]`.
    costs: time of each client, in any unit, `[K]`.
    num_devices: number of devices.
    lanes: number of lanes of a device, at least `K / num_devices`.
  """
  found: list[list[int]] = [[] for _ in range(num_devices)]
  # (work so far, device) of the devices that have an empty lane.
  free = [(0.0, device) for device in range(num_devices)]
  order = sorted(
    zip(members, costs, strict=True), key=lambda one: (-one[1], one[0])
  )
  for client, cost in order:
    work, device = heapq.heappop(free)
    found[device].append(int(client))
    if len(found[device]) < lanes:
      heapq.heappush(free, (work + float(cost), device))
  assigned = np.full((num_devices, lanes), -1, np.int32)
  for device, clients in enumerate(found):
    assigned[device, : len(clients)] = sorted(clients)
  return assigned.reshape(-1)


# Waves whose images and states fit in the budget, because the next wave is
# computed while the rows of the last one are copied.
WAVES = 2


class Lanes:
  """Assigns the clients of a round to lanes.

  Attributes:
    per_device: number of lanes of a device in a wave.
  """

  def __init__(
    self,
    placement: cohort.Placement,
    size: int,
    homes: bool,
    processes: Sequence[int],
    num_steps: Callable[[int], int],
    most: int,
  ):
    """Chooses the number of lanes.

    Args:
      placement: the device of every client.
      size: largest number of clients of a round, `K`.
      homes: whether every client runs on the device of its placement; otherwise
        it runs on any device of the same process.
      processes: the process of each device.
      num_steps: `(client) -> steps`.
      most: largest number of lanes of a device in a wave.
    """
    self._placement, self._homes = placement, homes
    self._num_steps = num_steps
    self._processes = np.asarray(processes)
    if homes:
      self._all = cohort.num_lanes(placement, size)
    else:
      self._all = max(
        num_lanes(min(size, clients), devices)
        for clients, devices in self._loads()
      )
    self.per_device = min(self._all, most)

  def _loads(self) -> Iterator[tuple[int, int]]:
    """Yields the numbers of clients and devices of each process."""
    owners = self.owners(range(len(self._placement.device)))
    for process in np.unique(self._processes):
      devices = int((self._processes == process).sum())
      yield int((owners == process).sum()), devices

  def owners(self, members: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the process that runs each client, `[k]`.

    Args:
      members: canonical indices of the clients, `[k]`.
    """
    # The placement decides, even if no images are resident: a process has the
    # states and reads the images of its clients only.
    devices = self._placement.device[np.asarray(members, np.int32)]
    return self._processes[devices]

  def waves(self, members: Sequence[int] | np.ndarray) -> list[np.ndarray]:
    """Returns the client in each lane of each wave, -1 if empty.

    Args:
      members: clients of a round, at most `K`.

    Returns:
      int32 `[devices * per_device]` of one wave or more.
    """
    everyone = np.asarray(members, np.int32)
    shape = self._placement.num_devices, self._all
    if self._homes:
      found = cohort.assign_lanes(self._placement, everyone, self._all)
      return self._cut(found.reshape(shape))
    rows = np.full(shape, -1, np.int32)
    owners = self.owners(everyone)
    for process in np.unique(self._processes):
      devices = np.flatnonzero(self._processes == process)
      mine = everyone[owners == process]
      costs = [self._num_steps(int(k)) for k in mine]
      found = assign(mine, costs, len(devices), self._all)
      rows[devices] = found.reshape(len(devices), self._all)
    return self._cut(rows)

  def _cut(self, rows: np.ndarray) -> list[np.ndarray]:
    """Cuts the lanes of all devices, `[devices, lanes]`, into waves."""
    # All waves have the same number of lanes, and therefore the same programs.
    # No wave has only lanes that are empty on every device.
    width = self.per_device
    used = max(1, int((rows >= 0).sum(axis=1).max(initial=0)))
    found = []
    for first in range(0, used, width):
      wave = np.full((len(rows), width), -1, np.int32)
      part = rows[:, first : first + width]
      wave[:, : part.shape[1]] = part
      found.append(wave.reshape(-1))
    return found


def most(budget: int, client_bytes: int) -> int:
  """Returns the largest number of lanes of a device in a wave.

  Args:
    budget: limit of the bytes of images on a device, 0 for no limit.
    client_bytes: bytes of the states of one client, and of its images unless
      these are resident.
  """
  if not budget or not client_bytes:
    return 2**31 - 1
  return max(1, budget // (WAVES * client_bytes))
