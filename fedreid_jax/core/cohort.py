"""Who takes part in a round, where each client lives, and its orders.

All of it is a pure function of (seed, round, clients): nothing is stored.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedreid_jax.core import prng, types
from fedreid_jax.core.types import ClientData, Plan

Planner = Callable[[int, int], Plan]


class Placement(NamedTuple):
  """The home of every client.

  Attributes:
    device: device of each client, `[N]`.
    first_row: where its images start in that device's table, `[N]`.
    rows: length of the longest table.
    num_devices: how many devices there are.
  """

  device: np.ndarray
  first_row: np.ndarray
  rows: int
  num_devices: int


def place(clients: Sequence[ClientData], num_devices: int) -> Placement:
  """Spreads clients over devices, largest first onto the emptiest."""
  device = np.zeros(len(clients), np.int32)
  first_row = np.zeros(len(clients), np.int32)
  load = [0] * num_devices
  sizes = [c.num_images for c in clients]
  for k in sorted(range(len(clients)), key=lambda k: (-sizes[k], k)):
    target = min(range(num_devices), key=lambda d: (load[d], d))
    device[k], first_row[k] = target, load[target]
    load[target] += sizes[k]
  return Placement(device, first_row, max(load), num_devices)


def draw(seed: int, round_: int, num_clients: int, fraction: float):
  """Returns the clients of a round in the order they were drawn.

  `ceil(fraction * N)` of them, without replacement (Wu & Gong, section 3).
  """
  size = max(1, math.ceil(fraction * num_clients - 1e-9))
  rng = prng.host(seed, prng.Stream.COHORT, round_, 0)
  return rng.permutation(num_clients)[:size].astype(np.int32)


def num_slots(placement: Placement, cohort_size: int) -> int:
  """Returns the places for clients on each device, enough for any draw."""
  homes = np.bincount(placement.device, minlength=placement.num_devices)
  return int(min(cohort_size, homes.max()))


def seat(placement: Placement, members: np.ndarray, slots: int) -> np.ndarray:
  """Returns the client in each place, -1 where empty, int32.

  Places are `[devices * slots]`; on a device clients sit in canonical order.
  """
  seats = np.full((placement.num_devices, slots), -1, np.int32)
  taken = [0] * placement.num_devices
  for k in sorted(members):
    d = placement.device[k]
    seats[d, taken[d]] = k
    taken[d] += 1
  return seats.reshape(-1)


def pass_plan(client: ClientData, seed: int, batch: int) -> Plan:
  """Returns the batches of a pass over all of a client's images, `[P, B]`.

  The order is one random permutation for the whole run, so that every batch is
  a sample of the client's images whatever their order on disk, and batches
  differ in size by one image at most: none is too small to have moments.

  Args:
    client: whose images.
    seed: of the run.
    batch: `B`, the most images of a batch.
  """
  num = client.num_images
  rng = prng.host(seed, prng.Stream.PASS, 0, prng.client_uid(client.name))
  parts = np.array_split(rng.permutation(num), -(-num // batch))
  rows = np.zeros((len(parts), batch), np.int32)
  valid = np.zeros((len(parts), batch), bool)
  for i, part in enumerate(parts):
    rows[i, : len(part)], valid[i, : len(part)] = part, True
  return Plan(rows, valid)


def work(
  clients: Sequence[ClientData],
  placement: Placement,
  seats: np.ndarray,
  planner: Planner,
  shape: tuple[int, int],
  passes: Callable[[int], Plan],
  pass_shape: tuple[int, int],
  groups: np.ndarray,
  round_: int,
) -> types.Work:
  """Returns the orders of all places, each field with a leading axis.

  Args:
    clients: all of them, canonical order.
    placement: where they live.
    seats: client of each place, -1 where empty.
    planner: `(round, client) -> Plan`.
    shape: `(S, B)` of the longest plan of the run.
    passes: `(client) -> Plan` of a pass over its images.
    pass_shape: `(P, B')` of the longest pass.
    groups: group of every client, `[N]`.
    round_: global round.
  """
  size = len(seats)
  rows = np.zeros((size, *shape), np.int32)
  valid = np.zeros((size, *shape), bool)
  pass_rows = np.zeros((size, *pass_shape), np.int32)
  pass_valid = np.zeros((size, *pass_shape), bool)
  num_steps = np.zeros(size, np.int32)
  here = seats >= 0
  for place_, k in enumerate(seats):
    if k < 0:
      continue
    plan = planner(round_, k)
    steps = len(plan.rows)
    num_steps[place_] = steps
    rows[place_, :steps] = plan.rows + placement.first_row[k]
    valid[place_, :steps] = plan.valid
    plan = passes(k)
    pass_rows[place_, : len(plan.rows)] = plan.rows + placement.first_row[k]
    pass_valid[place_, : len(plan.rows)] = plan.valid

  def column(values, dtype) -> np.ndarray:
    return np.where(here, np.asarray(values)[seats], 0).astype(dtype)

  images = [c.num_images for c in clients]
  return types.Work(
    index=seats.astype(np.int32),
    uid=column([prng.client_uid(c.name) for c in clients], np.uint32),
    group=column(groups, np.int32),
    num_examples=column(images, np.float32),
    num_identities=column([c.num_identities for c in clients], np.int32),
    num_steps=num_steps,
    first_step=np.zeros(size, np.int32),
    rows=rows,
    valid=valid,
    pass_rows=pass_rows,
    pass_valid=pass_valid,
  )
