"""Selection of the images of a batch, a function of (seed, round, client).

`uniform` shuffles the images of a client once per epoch. `pk` draws P
identities and K images of each, as a triplet loss needs; `pk_replace` draws
anew for every batch, and `pk_modality` and `pk_caj` draw images of both
modalities of each identity. These show every identity equally often.
`pk_torchreid` shows an image at most once per epoch, and therefore an identity
in proportion to its images. `poisson_pk` and `poisson` draw every identity or
image independently (`data.split.poisson`).
"""

import functools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import ClientData, Plan
from fedreid_jax.data.split import batches, poisson
from fedreid_jax.round.cohort import cohort

# Modalities of the parts of a batch: 0 visible, 1 infrared; a repeated 0 shows
# the same images again.
PARTS = {'pk_modality': (0, 1), 'pk_caj': (0, 0, 1)}


class Sampler(NamedTuple):
  """A sampler of batches.

  Attributes:
    epoch: `(client) -> number of batches` of the longest epoch.
    plan: `(rng, client, steps) -> Plan`, with `steps` batches or fewer.
    padded: `(client) -> bool`, whether a batch can have padded rows.
    places: number of rows of a batch over `config.batch`.
  """

  epoch: Callable[[ClientData], int]
  plan: Callable[[np.random.Generator, ClientData, int], Plan]
  padded: Callable[[ClientData], bool]
  places: int = 1


def make(
  config, clients: Sequence[ClientData], seed: int | Secret
) -> tuple[cohort.Planner, tuple[int, int], bool]:
  """Builds the planner of a federation from `config.local`.

  Args:
    config: fields `sampler` (one of `SAMPLERS`), `batch`, `epochs`, `steps`
      (above 0: a fixed number of steps instead of epochs), `identities` (P; K
      is batch / P), `cross_camera` (pk: prefer images of other cameras),
      `drop_last` (uniform: leave out a last batch that is not full, unless it
      is the only one).
    clients: clients in canonical order.
    seed: seed of the run, or its secret.

  Returns:
    (planner, `(S, B)` of the longest plan, whether any batch
    of any round can have padded rows).

  Raises:
    ConfigError: for a batch that is no multiple of parts times identities.
    DataError: for a client without the modalities that a sampler needs.
  """
  sampler = SAMPLERS[config.sampler](config)

  def num_steps(client: ClientData) -> int:
    return config.steps or config.epochs * sampler.epoch(client)

  def plan(round_: int, k: int | np.integer) -> Plan:
    client = clients[int(k)]
    uid = prng.client_uid(client.name)
    rng = prng.host(seed, prng.Stream.SAMPLER, round_, uid)
    return sampler.plan(rng, client, num_steps(client))

  padded = [sampler.padded(client) for client in clients]
  planner = cohort.Planner(plan, lambda k: num_steps(clients[k]))
  width = sampler.places * config.batch
  return planner, (max(map(num_steps, clients)), width), any(padded)


def _uniform(config) -> Sampler:
  batch, drop_last = config.batch, config.drop_last

  def epoch(client: ClientData) -> int:
    num = client.num_images
    return max(num // batch if drop_last else -(-num // batch), 1)

  def padded(client: ClientData) -> bool:
    ragged = client.num_images % batch and not drop_last
    return client.num_images < batch or bool(ragged)

  return Sampler(
    epoch,
    lambda rng, client, steps: batches.uniform(
      rng, client.num_images, steps, batch, drop_last
    ),
    padded,
  )


def _pk(config) -> Sampler:
  draw = batches.pk_replace
  if config.sampler == 'pk':
    draw = functools.partial(batches.pk, cross_camera=config.cross_camera)
  return Sampler(
    lambda client: client.num_images // config.batch + 1,
    lambda rng, client, steps: draw(
      rng, client, steps, config.batch, config.identities
    ),
    lambda client: len(np.unique(client.labels)) < config.identities,
  )


def _pk_torchreid(config) -> Sampler:
  images = config.batch // config.identities

  # The number of batches of an epoch is random. Each batch uses one group of
  # each of `size` identities, which gives the largest number.
  def size(client: ClientData) -> int:
    return min(config.identities, len(np.unique(client.labels)))

  return Sampler(
    lambda client: batches.groups_of(client, images) // size(client),
    lambda rng, client, steps: batches.pk_torchreid(
      rng,
      client,
      steps,
      config.batch,
      config.identities,
      0 if config.steps else config.epochs,
    ),
    lambda client: size(client) < config.identities,
  )


def _by_modality(config) -> Sampler:
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
    lambda rng, client, steps: batches.pk_by_modality(
      rng, client, steps, config.batch, config.identities, parts
    ),
    lambda client: len(batches.in_both(client)) < config.identities,
  )


def _poisson(config) -> Sampler:
  def plan(rng: np.random.Generator, client: ClientData, steps: int) -> Plan:
    if config.sampler == 'poisson':
      return poisson.images(rng, client, steps, config.batch)
    return poisson.identities(
      rng, client, steps, config.batch, config.identities
    )

  return Sampler(
    lambda client: client.num_images // config.batch + 1,
    plan,
    # The number of units of a step is random.
    lambda client: True,
    poisson.PLACES,
  )


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
