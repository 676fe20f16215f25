"""Selection of the images of each batch of a client, drawn with NumPy."""

import numpy as np
from jaxtyping import Int, Int32

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData, Plan


def uniform(
  rng: np.random.Generator, num: int, steps: int, batch: int, drop_last: bool
) -> Plan:
  """Shuffles `num` images in every epoch until `steps` batches are full."""
  per_epoch = num // batch if drop_last else -(-num // batch)
  per_epoch = max(per_epoch, 1)
  # A padded row is -1 here; in the plan it is row 0 with a mask of False.
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

  The images of an identity in a batch differ if the client has enough of them.

  Args:
    rng: generator of this client and round.
    client: labels and cameras of its images.
    steps: number of batches to draw.
    batch: B, a multiple of P.
    identities: P; a client with fewer leaves the rest of the batch padded.
    cross_camera: whether to take one random image of an identity, and the
      others from other cameras if there are any.
  """
  images = batch // identities
  present = np.unique(client.labels)
  pools = {label: np.flatnonzero(client.labels == label) for label in present}
  rows = np.full((steps, identities, images), -1, np.int32)
  size = min(identities, len(present))
  order = np.empty(0, present.dtype)
  for step in range(steps):
    # A shuffled list shows identities equally often. It is shuffled again when
    # fewer than P are left.
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


def groups_of(client: ClientData, images: int) -> int:
  """Returns the number of groups of K images of `pk_torchreid` in an epoch."""
  sizes = np.unique(client.labels, return_counts=True)[1]
  return int(np.maximum(sizes // images, 1).sum())


def pk_torchreid(
  rng: np.random.Generator,
  client: ClientData,
  steps: int,
  batch: int,
  identities: int,
  epochs: int = 0,
) -> Plan:
  """Draws P identities and K images of each, an image at most once per epoch.

  This is the `RandomIdentitySampler` of torchreid: the images of each identity
  are shuffled and cut into groups of K, the remainder is left out, and an
  identity with fewer images has one group drawn with replacement. A batch takes
  one group of each of P random identities with groups left. The number of
  batches of an epoch is random.

  Args:
    rng: generator of this client and round.
    client: labels of its images.
    steps: largest number of batches to draw.
    batch: B, a multiple of P.
    identities: P; a client with fewer leaves the rest of the batch padded.
    epochs: largest number of epochs; 0 for as many as `steps` need.
  """
  images = batch // identities
  present = np.unique(client.labels)
  pools = [np.flatnonzero(client.labels == label) for label in present]
  # torchreid shows no image of a client with fewer than P identities; here the
  # rest of each batch is padded.
  size = min(identities, len(present))
  drawn: list[np.ndarray] = []
  epoch = 0
  while len(drawn) < steps and not 0 < epochs <= epoch:
    groups = [_groups(rng, pool, images) for pool in pools]
    # The epoch ends when fewer than P identities have a group left.
    while len(left := [k for k, own in enumerate(groups) if own]) >= size:
      chosen = rng.choice(left, size, replace=False)
      drawn.append(np.stack([groups[k].pop() for k in chosen]))
    epoch += 1
  rows = np.full((min(steps, len(drawn)), identities, images), -1, np.int32)
  rows[:, :size] = drawn[: len(rows)]
  rows = rows.reshape(len(rows), batch)
  return Plan(np.maximum(rows, 0), rows >= 0)


def _groups(
  rng, pool: Int[np.ndarray, ' pool'], images: int
) -> list[Int[np.ndarray, ' images']]:
  """Cuts shuffled rows into groups of K, without the remainder."""
  if len(pool) < images:
    return [rng.choice(pool, images)]
  shuffled = rng.permutation(pool)[: len(pool) // images * images]
  return list(shuffled.reshape(-1, images))


def pk_replace(
  rng: np.random.Generator,
  client: ClientData,
  steps: int,
  batch: int,
  identities: int,
) -> Plan:
  """Draws P identities for each batch, and K images of each with replacement.

  This is the sampler of L2RW for clients that do not know modalities.

  Args:
    rng: generator of this client and round.
    client: labels of its images.
    steps: batches to draw.
    batch: B, a multiple of P.
    identities: P; a client with fewer leaves the rest of the batch padded.
  """
  chosen = _identities(rng, np.unique(client.labels), steps, identities)
  every = np.arange(client.num_images)
  rows = _images(rng, client.labels, every, chosen, batch // identities)
  rows = rows.reshape(steps, batch)
  return Plan(np.maximum(rows, 0), rows >= 0)


def pk_by_modality(
  rng: np.random.Generator,
  client: ClientData,
  steps: int,
  batch: int,
  identities: int,
  parts: tuple[int, ...],
) -> Plan:
  """Draws P identities for each batch, and images of both modalities of each.

  Identities with images of one modality only are never drawn. Images are drawn
  with replacement. All parts of a batch have the same identities in the same
  order.

  Args:
    rng: generator of this client and round.
    client: labels and modalities of its images.
    steps: batches to draw.
    batch: B, a multiple of P times the number of parts.
    identities: P; a client with fewer leaves the rest of each part padded.
    parts: modality of each part; a repeated modality has the same images.

  Raises:
    DataError: for a client that has no identity in both modalities.
  """
  chosen = _identities(rng, in_both(client), steps, identities)
  num = batch // (len(parts) * identities)
  drawn = [
    _images(
      rng,
      client.labels,
      np.flatnonzero(client.modalities == modality),
      chosen,
      num,
    )
    for modality in (0, 1)
  ]
  rows = np.stack([drawn[modality] for modality in parts], axis=1)
  rows = rows.reshape(steps, batch)
  return Plan(np.maximum(rows, 0), rows >= 0)


def in_both(client: ClientData) -> Int[np.ndarray, ' identities']:
  """Returns the identities with visible and infrared images, sorted.

  Raises:
    DataError: for a client that has no such identity.
  """
  visible, infrared = (
    np.unique(client.labels[client.modalities == m]) for m in (0, 1)
  )
  both = np.intersect1d(visible, infrared)
  if not len(both):
    raise errors.DataError(
      f'{len(visible)} visible and {len(infrared)} infrared identities, '
      'none in common',
      f'client {client.name}',
      "add images of both modalities, or set local.sampler='pk_replace'",
    )
  return both


def _identities(
  rng, present: Int[np.ndarray, ' present'], steps: int, num: int
) -> Int[np.ndarray, 'S {num}']:
  """Draws identities of each batch without replacement, -1 for none."""
  # Sorting random numbers permutes the identities of all batches at once.
  order = rng.random((steps, len(present))).argsort(axis=1)[:, :num]
  chosen = np.full((steps, num), -1)
  chosen[:, : order.shape[1]] = present[order]
  return chosen


def _images(
  rng,
  labels: Int[np.ndarray, ' M'],
  rows: Int[np.ndarray, ' rows'],
  chosen: Int[np.ndarray, 'S identities'],
  num: int,
) -> Int32[np.ndarray, 'S identities {num}']:
  """Draws rows of each identity with replacement, -1 for none."""
  pool = rows[np.argsort(labels[rows], kind='stable')]
  first = np.searchsorted(labels[pool], chosen)[..., None]
  last = np.searchsorted(labels[pool], chosen, side='right')[..., None]
  size = (*chosen.shape, num)
  # An absent identity has no row; the limit of a draw must still be above 0.
  drawn = pool[first + rng.integers(0, np.maximum(last - first, 1), size)]
  return np.where(last > first, drawn, -1).astype(np.int32)
