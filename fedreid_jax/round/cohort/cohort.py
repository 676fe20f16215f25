"""Samples the cohort of a round and assigns its clients to devices and lanes.

The cohort is the set of clients that train in a round. A lane is a place for
one client on a device. All functions are pure and run on the host.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.core import prng, types
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import ClientData, Plan


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

  Args:
    seed: seed or secret of the run.
    round_: global round.
    num_clients: `N`.
    rate: probability of each client.
    places: largest number of clients.
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

  Args:
    placement: the device of every client.
    members: the clients that take part, `[K]`.
    lanes: number of lanes per device.
  """
  assigned = np.full((placement.num_devices, lanes), -1, np.int32)
  taken = [0] * placement.num_devices
  for k in sorted(members):
    d = placement.device[k]
    assigned[d, taken[d]] = k
    taken[d] += 1
  return assigned.reshape(-1)


def pass_plan(
  client: ClientData, seed: int, batch: int, modality: int | None = None
) -> Plan:
  """Returns the batches of a pass over all of a client's images, `[P, B]`.

  The order is one random permutation for the whole run. Batches differ in size
  by at most one image.

  Args:
    client: data of the client.
    seed: seed of the run.
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
    clients: all clients, in canonical order.
    placement: the device of every client.
    lanes: client of each lane, -1 if empty.
    planner: `(round, client) -> plan` of the client's steps.
    shape: `(S, B)` of the longest plan of the run.
    passes: `(client) -> plan` of the client's data pass.
    pass_shape: `(P, B')` of the longest pass.
    groups: group of every client, `[N]`.
    members: the clients of the lanes in the order of sampling, `[K]`.
    staleness: updates of the server since it sent their models, int32 `[K]`.
    round_: global round.
    seed: seed of the run.
    secret: secret of the run, if there is one.
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
