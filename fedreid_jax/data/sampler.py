"""Which images make a batch: pure functions of (seed, round, client).

`uniform` shuffles a client's images once an epoch. `pk` draws P identities and
K images of each, what a triplet loss needs.
"""

from collections.abc import Sequence

import numpy as np

from fedreid_jax.core import cohort, keys
from fedreid_jax.core.types import ClientData, Plan

SAMPLERS = ('uniform', 'pk')


def make(
  config, clients: Sequence[ClientData], seed: int
) -> tuple[cohort.Planner, tuple[int, int], bool]:
  """Builds the planner of a federation from `config.local`.

  Args:
    config: fields `sampler`, `batch`, `epochs`, `steps` (above 0: a fixed
      number of steps instead of epochs), `identities` (P; K is batch / P),
      `cross_camera` (prefer images of other cameras), `drop_last` (leave out a
      last batch that is not full, unless it is the only one).
    clients: in canonical order.
    seed: of the run.

  Returns:
    (`(round, client) -> Plan`, `(S, B)` of the longest plan, whether any batch
    of any round can have padded rows).
  """
  batch = config.batch

  def num_steps(client: ClientData) -> int:
    if config.steps:
      return config.steps
    num = client.num_images
    if config.sampler == 'pk':
      return config.epochs * (num // batch + 1)
    full = num // batch if config.drop_last else -(-num // batch)
    return config.epochs * max(full, 1)

  def planner(round_: int, k: int) -> Plan:
    client = clients[k]
    uid = keys.client_uid(client.name)
    rng = keys.host(seed, keys.Stream.SAMPLER, round_, uid)
    steps = num_steps(client)
    if config.sampler == 'pk':
      return pk(
        rng, client, steps, batch, config.identities, config.cross_camera
      )
    return uniform(rng, client.num_images, steps, batch, config.drop_last)

  def padded(client: ClientData) -> bool:
    if config.sampler == 'pk':
      return len(np.unique(client.labels)) < config.identities
    ragged = client.num_images % batch and not config.drop_last
    return client.num_images < batch or bool(ragged)

  shape = max(num_steps(c) for c in clients), batch
  return planner, shape, any(padded(c) for c in clients)


def uniform(
  rng: np.random.Generator, num: int, steps: int, batch: int, drop_last: bool
) -> Plan:
  """Shuffles `num` images anew every epoch until `steps` batches are full."""
  per_epoch = num // batch if drop_last else -(-num // batch)
  per_epoch = max(per_epoch, 1)
  rows = np.full((steps, batch), -1, np.int32)
  for first in range(0, steps, per_epoch):
    order = np.full(per_epoch * batch, -1, np.int32)
    shuffled = rng.permutation(num)[: order.size]
    order[: shuffled.size] = shuffled
    size = min(per_epoch, steps - first)
    rows[first : first + size] = order.reshape(per_epoch, batch)[:size]
  return Plan(np.maximum(rows, 0), rows >= 0)


def pk(
  rng: np.random.Generator,
  client: ClientData,
  steps: int,
  batch: int,
  identities: int,
  cross_camera: bool,
) -> Plan:
  """Draws P identities and K images of each.

  Identities come from a shuffled list that starts anew when fewer than P are
  left of it. Images of one draw differ while the client has enough of them.

  Args:
    rng: of this client and round.
    client: labels and cameras of its images.
    steps: batches to draw.
    batch: B, a multiple of P.
    identities: P; a client with fewer leaves the rest of the batch padded.
    cross_camera: take one random image of an identity, the others from other
      cameras while there are any.
  """
  images = batch // identities
  present = np.unique(client.labels)
  pools = {label: np.flatnonzero(client.labels == label) for label in present}
  rows = np.full((steps, identities, images), -1, np.int32)
  size = min(identities, len(present))
  order = np.empty(0, present.dtype)
  for step in range(steps):
    if len(order) < size:
      order = rng.permutation(present)
    chosen, order = order[:size], order[size:]
    for place, label in enumerate(chosen):
      pool = pools[label]
      anchor = rng.choice(pool)
      others = pool[pool != anchor]
      if cross_camera:
        away = pool[client.cameras[pool] != client.cameras[anchor]]
        others = away if len(away) else others
      others = others if len(others) else pool
      more = rng.choice(others, images - 1, replace=len(others) < images - 1)
      rows[step, place] = [anchor, *more]
  rows = rows.reshape(steps, batch)
  return Plan(np.maximum(rows, 0), rows >= 0)
