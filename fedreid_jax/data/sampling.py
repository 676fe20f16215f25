"""Selection of the images of a batch, a function of (seed, round, client).

`pk`, for triplet losses, and its variants show every identity equally often,
but `pk_torchreid` shows an identity in proportion to its images.

`poisson_pk` and `poisson` are for guarantees of privacy. A unit of these, an
identity or a single image, is in a step with the same probability,
independently of all other units and of other steps (Poisson sampling). A step
has a limited number of places; if more units are drawn, a random subset of them
takes part (truncated Poisson sampling, arXiv:2508.15089). A step may be empty.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.options import Natural, Positive, Range
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import ClientData, Plan
from fedreid_jax.data import tracklets
from fedreid_jax.method import poisson
from fedreid_jax.round import cohort

# Modalities of the parts of a batch: 0 visible, 1 infrared; a repeated 0 shows
# the same images again.
PARTS = {'pk_modality': (0, 1), 'pk_caj': (0, 0, 1)}
SamplerName = Literal[
  'uniform',
  'pk',
  'pk_replace',
  'pk_torchreid',
  'pk_modality',
  'pk_caj',
  'poisson',
  'poisson_pk',
]


@dataclasses.dataclass(frozen=True)
class Local:
  """Batches of a client in a round."""

  sampler: Annotated[
    SamplerName,
    'sampler of batches; uniform shuffles, pk_modality and pk_caj are '
    'visible-infrared, poisson and poisson_pk draw each image or identity '
    'independently',
  ] = 'uniform'
  batch: Annotated[
    int, Range(2), 'number of images in a step, on average if it is random'
  ] = 32
  epochs: Annotated[
    Positive, "number of passes over a client's images in a round"
  ] = 1
  steps: Annotated[
    Natural, 'number of steps of a round for clients of any size; 0 uses epochs'
  ] = 0
  identities: Annotated[
    int,
    Range(2),
    'pk: number of identities in a batch, with batch / identities images each',
  ] = 16
  frames: Annotated[
    Positive,
    'number of frames of a tracklet, which then takes the place of an image in '
    'a batch; 1 trains on single images',
  ] = 1
  cross_camera: Annotated[bool, 'pk: prefer images of other cameras'] = True
  drop_last: Annotated[
    bool, 'drop a batch that is not full, unless it is the only one'
  ] = True
  accumulate: Annotated[
    bool, 'make one update per round with the gradient of all images'
  ] = False
  data_pass_batch: Annotated[
    Positive, 'number of images in a step of a data pass'
  ] = 64


class Sampler(NamedTuple):
  """A sampler of batches."""

  epoch: Callable[[ClientData], int]  # most batches in one epoch
  plan: Callable[[np.random.Generator, ClientData, int], Plan]
  padded: Callable[[ClientData], bool]  # whether rows of a batch can be padded
  places: int = 1  # rows of a batch over `config.batch`


def make(
  config: Local, clients: Sequence[ClientData], seed: int | Secret
) -> tuple[cohort.Planner, tuple[int, int], bool]:
  """Builds the planner of a federation from `config.local`.

  Returns (planner, `(S, B)` of the longest plan, whether any batch of any round
  can have padded rows). The clients are in canonical order; `seed` is the seed
  of the run, or its secret. With `config.frames` above 1, B counts the frames
  of all tracklets of a batch, those of a tracklet one after another.

  Raises:
    ConfigError: for a batch that is no multiple of parts times identities.
    DataError: for a client without the modalities that a sampler needs, or
      without tracklets for `config.frames`.
  """
  sampler = SAMPLERS[config.sampler](config)

  def num_steps(client: ClientData) -> int:
    return config.steps or config.epochs * sampler.epoch(client)

  def plan(round_: int, k: int | np.integer) -> Plan:
    client = clients[int(k)]
    uid = prng.client_uid(client.name)
    rng = prng.host(seed, prng.Stream.SAMPLER, round_, uid)
    found = sampler.plan(rng, client, num_steps(client))
    if config.frames == 1:
      return found
    return tracklets.with_frames(rng, found, spans[int(k)], config.frames)

  spans: tuple[tracklets.Spans, ...] = ()
  if config.frames > 1:
    clients, spans = zip(*map(tracklets.units, clients), strict=True)
  padded = [sampler.padded(client) for client in clients]
  planner = cohort.Planner(plan, lambda k: num_steps(clients[k]))
  width = sampler.places * config.batch * config.frames
  return planner, (max(map(num_steps, clients)), width), any(padded)


def _uniform(config: Local) -> Sampler:
  batch, drop_last = config.batch, config.drop_last

  def epoch(client: ClientData) -> int:
    num = client.num_images
    return max(num // batch if drop_last else -(-num // batch), 1)

  def padded(client: ClientData) -> bool:
    ragged = client.num_images % batch and not drop_last
    return client.num_images < batch or bool(ragged)

  return Sampler(
    epoch,
    lambda rng, client, steps: uniform(
      rng, client.num_images, steps, batch, drop_last
    ),
    padded,
  )


def _pk(config: Local) -> Sampler:
  draw = pk_replace
  if config.sampler == 'pk':
    draw = functools.partial(pk, cross_camera=config.cross_camera)
  return Sampler(
    lambda client: client.num_images // config.batch + 1,
    lambda rng, client, steps: draw(
      rng, client, steps, config.batch, config.identities
    ),
    lambda client: len(np.unique(client.labels)) < config.identities,
  )


def _pk_torchreid(config: Local) -> Sampler:
  images = config.batch // config.identities

  # The number of batches of an epoch is random. Each batch uses one group of
  # each of `size` identities, which gives the largest number.
  def size(client: ClientData) -> int:
    return min(config.identities, len(np.unique(client.labels)))

  return Sampler(
    lambda client: groups_of(client, images) // size(client),
    lambda rng, client, steps: pk_torchreid(
      rng,
      client,
      steps,
      config.batch,
      config.identities,
      0 if config.steps else config.epochs,
    ),
    lambda client: size(client) < config.identities,
  )


def _by_modality(config: Local) -> Sampler:
  parts = PARTS[config.sampler]
  if config.batch % (len(parts) * config.identities):
    raise errors.ConfigError(
      f'{config.batch} images for {config.identities} identities in '
      f'{len(parts)} parts',
      'local.batch',
      f'a multiple of {len(parts) * config.identities}',
    )

  def epoch(client: ClientData) -> int:
    most = max(np.bincount(client.modalities, minlength=2))
    return int(most) // (config.batch // len(parts)) + 1

  return Sampler(
    epoch,
    lambda rng, client, steps: pk_by_modality(
      rng, client, steps, config.batch, config.identities, parts
    ),
    lambda client: len(in_both(client)) < config.identities,
  )


def _poisson(config: Local) -> Sampler:
  def plan(rng: np.random.Generator, client: ClientData, steps: int) -> Plan:
    if config.sampler == 'poisson':
      return poisson_images(rng, client, steps, config.batch)
    return poisson_identities(
      rng, client, steps, config.batch, config.identities
    )

  return Sampler(
    lambda client: client.num_images // config.batch + 1,
    plan,
    # The number of units of a step is random.
    lambda client: True,
    poisson.PLACES,
  )


SAMPLERS = {
  'uniform': _uniform,
  'pk': _pk,
  'pk_replace': _pk,
  'pk_torchreid': _pk_torchreid,
  'pk_modality': _by_modality,
  'pk_caj': _by_modality,
  'poisson': _poisson,
  'poisson_pk': _poisson,
}


# The functions below draw `steps` batches of B images with the generator of a
# client and round. P is `identities`, K is B / P; a client with fewer than P
# identities leaves the rest of a batch padded.


def _plan(rows: Int[np.ndarray, 'S ...']) -> Plan:
  """Makes a plan of the rows of each batch, -1 for a padded one."""
  rows = rows.reshape(len(rows), -1)
  # In the plan it is row 0 with a mask of False.
  return Plan(np.maximum(rows, 0), rows >= 0)


def uniform(
  rng: np.random.Generator, num: int, steps: int, batch: int, drop_last: bool
) -> Plan:
  """Shuffles `num` images in every epoch until `steps` batches are full."""
  per_epoch = num // batch if drop_last else -(-num // batch)
  per_epoch = max(per_epoch, 1)
  rows = np.full((steps, batch), -1, np.int32)
  for first in range(0, steps, per_epoch):
    order = np.full(per_epoch * batch, -1, np.int32)
    shuffled = rng.permutation(num)[: order.size]
    order[: shuffled.size] = shuffled
    size = min(per_epoch, steps - first)
    rows[first : first + size] = order.reshape(per_epoch, batch)[:size]
  return _plan(rows)


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
  `cross_camera` takes one random image of an identity, and the others from
  other cameras if there are any.
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
  return _plan(rows)


def groups_of(client: ClientData, images: int) -> int:
  """Number of groups of K images of `pk_torchreid` in an epoch."""
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
  batches of an epoch is random, and at most `steps` are drawn, of at most
  `epochs` epochs if it is not 0.
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
  return _plan(rows)


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
  """
  chosen = _identities(rng, np.unique(client.labels), steps, identities)
  every = np.arange(client.num_images)
  rows = _images(rng, client.labels, every, chosen, batch // identities)
  return _plan(rows)


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
  order; `parts` has the modality of each, and B is a multiple of P times their
  number. A DataError is raised as by `in_both`.
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
  return _plan(rows)


def in_both(client: ClientData) -> Int[np.ndarray, ' identities']:
  """Sorted identities with images of both modalities; DataError for none."""
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


def poisson_images(
  rng: np.random.Generator, client: ClientData, steps: int, batch: int
) -> Plan:
  """Draws every image independently, B on average."""
  pools = np.arange(client.num_images)[:, None]
  return _poisson_plan(rng, list(pools), steps, batch, 1)


def poisson_identities(
  rng: np.random.Generator,
  client: ClientData,
  steps: int,
  batch: int,
  expected: int,
) -> Plan:
  """Draws every identity independently, P on average, and K images of each.

  The K = B / P images of an identity differ if it has enough of them.
  """
  pools = [np.flatnonzero(client.labels == j) for j in np.unique(client.labels)]
  return _poisson_plan(rng, pools, steps, expected, batch // expected)


def _poisson_plan(
  rng: np.random.Generator,
  pools: list[np.ndarray],
  steps: int,
  expected: int,
  size: int,
) -> Plan:
  """Draws units, given by the rows of their images, and `size` rows of each."""
  most = poisson.places(expected)
  rows = np.full((steps, most, size), -1, np.int32)
  for step in range(steps):
    drawn = rng.random(len(pools)) < poisson.rate(expected, len(pools))
    # In a random order, units without a place are a random subset, too.
    for place, unit in enumerate(rng.permutation(np.flatnonzero(drawn))[:most]):
      pool = pools[unit]
      rows[step, place] = rng.choice(pool, size, replace=len(pool) < size)
  return _plan(rows)
