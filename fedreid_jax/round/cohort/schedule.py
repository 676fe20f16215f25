"""Which device runs which client of a round, by longest processing time.

A device runs its clients one after another, so a round takes as long as the
device with the most steps. Clients are assigned in the order of decreasing
cost, each to the device with the least work (Graham, 1969: at most 4/3 of the
shortest round), as pfl-research does by numbers of images (Granqvist et al.,
2024).
"""

import heapq
import math
from collections.abc import Sequence

import numpy as np

SLACK = 1.5  # lanes of a device over an equal share; empty lanes take no step


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
    costs: time of each, in any unit, `[K]`.
    num_devices: number of devices.
    lanes: lanes of a device, at least `K / num_devices`.
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
