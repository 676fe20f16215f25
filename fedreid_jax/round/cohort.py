"""Samples the cohort of a round and assigns its clients to devices and lanes.

The cohort is the set of clients that train in a round. A lane is a place for
one client on a device. A client whose images are resident runs on the device
that has them. Other clients run on the device with the least work in the
process that has their states. If uploads are added, a round is cut into waves,
which are calls of the same programs over some lanes of every device. The memory
of a device then depends on the number of lanes of a wave, and not on the number
of clients of a round. All functions are pure and run on the host.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.core import prng, types
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import ClientData, Plan

# Lanes of a device over an equal share of the clients: a device whose clients
# have few steps runs more of them. Empty lanes take no step.
SLACK = 1.5
# Waves whose images and states fit in the budget, because the next wave is
# computed while the rows of the last one are copied.
WAVES = 2


class Planner(NamedTuple):
  """The batches of every client in every round.

  Attributes:
    plan: `(round, client) -> Plan`.
    num_steps: `(client) -> number of steps` of the client's longest plan.
  """

  plan: Callable[[int, int], Plan]
  num_steps: Callable[[int], int]

  def __call__(self, round_: int, client: int) -> Plan:
    """Returns the plan of a client in a round."""
    return self.plan(round_, client)


class Placement(NamedTuple):
  """The device of every client.

  Attributes:
    device: device of each client, `[N]`.
    first_row: index of the client's first image among the images of its device,
      `[N]`.
    rows: number of images on the device with the most images.
    num_devices: number of devices.
  """

  device: np.ndarray
  first_row: np.ndarray
  rows: int
  num_devices: int


def place(clients: Sequence[ClientData], num_devices: int) -> Placement:
  """Assigns clients, largest first, to the device with the fewest images."""
  device = np.zeros(len(clients), np.int32)
  first_row = np.zeros(len(clients), np.int32)
  load = [0] * num_devices
  sizes = [c.num_images for c in clients]
  for k in sorted(range(len(clients)), key=lambda k: (-sizes[k], k)):
    target = min(range(num_devices), key=lambda d: (load[d], d))
    device[k], first_row[k] = target, load[target]
    load[target] += sizes[k]
  return Placement(device, first_row, max(load), num_devices)


def size(num_clients: int, fraction: float) -> int:
  """Returns the number of clients of a round, `K`, at least 1."""
  # Rounding errors of the product must not add a client: 0.07 * 100 is above 7.
  return max(1, math.ceil(fraction * num_clients - 1e-9))


def sample_cohort(
  seed: int | Secret, round_: int, num_clients: int, fraction: float
) -> np.ndarray:
  """Returns the clients of a round in sampling order, int32 `[K]`.

  `ceil(fraction * N)` clients are sampled without replacement (Wu & Gong,
  section 3).
  """
  num = size(num_clients, fraction)
  rng = prng.host(seed, prng.Stream.COHORT, round_, 0)
  return rng.permutation(num_clients)[:num].astype(np.int32)


def sample_poisson(
  seed: int | Secret, round_: int, num_clients: int, rate: float, places: int
) -> np.ndarray:
  """Returns the clients of a round in sampling order, int32 `[0..places]`.

  Each client is sampled independently; above the number of places a random
  subset of the sampled clients takes part (truncated Poisson sampling).
  """
  rng = prng.host(seed, prng.Stream.COHORT, round_, 1)
  order = rng.permutation(num_clients).astype(np.int32)
  return order[rng.random(num_clients) < rate][:places]


def num_lanes(placement: Placement, cohort_size: int) -> int:
  """Returns the lanes per device that suffice for any cohort of a size."""
  most = np.bincount(placement.device, minlength=placement.num_devices)
  return int(min(cohort_size, most.max()))


def assign_lanes(
  placement: Placement, members: np.ndarray, lanes: int
) -> np.ndarray:
  """Returns the client in each lane, -1 if empty, int32 `[devices * lanes]`.

  The lanes of a device contain its clients in canonical order (by name).
  """
  assigned = np.full((placement.num_devices, lanes), -1, np.int32)
  taken = [0] * placement.num_devices
  for k in sorted(members):
    d = placement.device[k]
    assigned[d, taken[d]] = k
    taken[d] += 1
  return assigned.reshape(-1)


def even_lanes(places: int, num_devices: int) -> int:
  """Returns the number of lanes of a device."""
  if num_devices == 1:
    return places
  return min(places, math.ceil(SLACK * places / num_devices))


# A device runs its clients one after another, so a round takes as long as the
# device with the most steps. Clients are assigned in the order of decreasing
# cost, each to the device with the least work (Graham, 1969: at most 4/3 of the
# shortest round), as pfl-research does by numbers of images (Granqvist et al.,
# 2024).
def assign_evenly(
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


class Lanes:
  """Assigns the clients of a round to lanes.

  Attributes:
    per_device: number of lanes of a device in a wave.
  """

  def __init__(
    self,
    placement: Placement,
    size: int,
    homes: bool,
    processes: Sequence[int],
    num_steps: Callable[[int], int],
    most_lanes: int,
  ):
    """Chooses the number of lanes.

    Args:
      size: largest number of clients of a round, `K`.
      homes: whether every client runs on the device of its placement; otherwise
        it runs on any device of the same process.
      num_steps: `(client) -> number of steps` of the client's longest plan.
      most_lanes: largest number of lanes of a device in a wave.
    """
    self._placement, self._homes = placement, homes
    self._num_steps = num_steps
    self._processes = np.asarray(processes)
    if homes:
      self._all = num_lanes(placement, size)
    else:
      self._all = max(
        even_lanes(min(size, clients), devices)
        for clients, devices in self._loads()
      )
    self.per_device = min(self._all, most_lanes)

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
      found = assign_lanes(self._placement, everyone, self._all)
      return self._cut(found.reshape(shape))
    rows = np.full(shape, -1, np.int32)
    owners = self.owners(everyone)
    for process in np.unique(self._processes):
      devices = np.flatnonzero(self._processes == process)
      mine = everyone[owners == process]
      costs = [self._num_steps(int(k)) for k in mine]
      found = assign_evenly(mine, costs, len(devices), self._all)
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


def most_lanes(budget: int, client_bytes: int) -> int:
  """Returns the largest number of lanes of a device in a wave.

  Args:
    budget: bytes of a device for states and images, 0 for no limit.
    client_bytes: bytes of the states of one client, and of its images unless
      these are resident.
  """
  if not budget or not client_bytes:
    return 2**31 - 1
  return max(1, budget // (WAVES * client_bytes))


def pass_plan(
  client: ClientData, seed: int, batch: int, modality: int | None = None
) -> Plan:
  """Returns the batches of a pass over all of a client's images, `[P, B]`.

  The order is one random permutation for the whole run. Batches differ in size
  by at most one image.

  Args:
    batch: `B`, the largest number of images in a batch.
    modality: modality of the images of the pass, None for all; a client without
      such images has one batch without images.
  """
  images = np.arange(client.num_images)
  if modality is not None:
    images = np.flatnonzero(client.modalities == modality)
  num_batches = max(1, -(-len(images) // batch))
  rng = prng.host(seed, prng.Stream.PASS, 0, prng.client_uid(client.name))
  # Every batch is a random sample of the images, whatever their order on disk.
  # Equal parts avoid a small last batch.
  parts = np.array_split(images[rng.permutation(len(images))], num_batches)
  rows = np.zeros((len(parts), batch), np.int32)
  valid = np.zeros((len(parts), batch), bool)
  for i, part in enumerate(parts):
    rows[i, : len(part)], valid[i, : len(part)] = part, True
  return Plan(rows, valid)


def make_tasks(
  clients: Sequence[ClientData],
  placement: Placement,
  lanes: np.ndarray,
  planner: Callable[[int, int], Plan],
  shape: tuple[int, int],
  passes: Callable[[int], Plan],
  pass_shape: tuple[int, int],
  groups: np.ndarray,
  members: np.ndarray,
  staleness: np.ndarray,
  round_: int,
  seed: int,
  secret: Secret | None = None,
) -> types.ClientTask:
  """Returns the tasks of all lanes. Every field has a leading axis for lanes.

  Args:
    lanes: client of each lane, -1 if empty.
    planner: `(round, client) -> plan` of the client's steps.
    shape: `(S, B)` of the longest plan of the run.
    passes: `(client) -> plan` of the client's data pass.
    pass_shape: `(P, B')` of the longest pass.
    members: the clients of the lanes in the order of sampling, `[K]`.
    staleness: updates of the server since it sent their models, int32 `[K]`.
  """
  size = len(lanes)
  # The longest plans determine the shapes, so that all rounds have one program.
  rows = np.zeros((size, *shape), np.int32)
  valid = np.zeros((size, *shape), bool)
  pass_rows = np.zeros((size, *pass_shape), np.int32)
  pass_valid = np.zeros((size, *pass_shape), bool)
  num_steps = np.zeros(size, np.int32)
  for lane, k in enumerate(lanes):
    if k < 0:
      continue
    plan = planner(round_, k)
    steps = len(plan.rows)
    num_steps[lane] = steps
    rows[lane, :steps] = plan.rows + placement.first_row[k]
    valid[lane, :steps] = plan.valid
    plan = passes(k)
    pass_rows[lane, : len(plan.rows)] = plan.rows + placement.first_row[k]
    pass_valid[lane, : len(plan.rows)] = plan.valid

  def column(value: Callable[[int], Any], dtype: Any) -> np.ndarray:
    return np.array([value(k) if k >= 0 else 0 for k in lanes.tolist()], dtype)

  uids = column(lambda k: prng.client_uid(clients[k].name), np.uint32)
  public = prng.data(seed)
  seeds = [prng.of_round(public, secret, round_, uid) for uid in uids.tolist()]
  order = {int(k): i for i, k in enumerate(members)}
  return types.ClientTask(
    index=lanes.astype(np.int32),
    uid=uids,
    seed=np.stack(seeds),
    group=column(groups.__getitem__, np.int32),
    drawn=column(order.__getitem__, np.int32),
    staleness=column(lambda k: staleness[order[k]], np.int32),
    num_examples=column(lambda k: clients[k].num_images, np.float32),
    num_identities=column(lambda k: clients[k].num_identities, np.int32),
    num_steps=num_steps,
    first_step=np.zeros(size, np.int32),
    rows=rows,
    valid=valid,
    pass_rows=pass_rows,
    pass_valid=pass_valid,
  )
