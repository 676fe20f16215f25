"""Images by domain -> clients with their own label spaces, and targets."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import keys
from fedreid_jax.core.types import ClientData


class Images(NamedTuple):
  """Images of one domain, or of one side of a retrieval test.

  Attributes:
    name: of the domain.
    images: `() -> uint8 [M, H, W, ch]`, possibly memory-mapped.
    identities: int32 `[M]`, unique within the domain only.
    cameras: int32 `[M]`.
    modalities: 0 visible, 1 infrared, int32 `[M]`.
  """

  name: str
  images: Callable[[], np.ndarray]
  identities: np.ndarray
  cameras: np.ndarray
  modalities: np.ndarray

  def take(self, rows: np.ndarray) -> 'Images':
    """Returns some of the images."""
    return Images(
      self.name,
      lambda: self.images()[rows],
      self.identities[rows],
      self.cameras[rows],
      self.modalities[rows],
    )


class Target(NamedTuple):
  """A retrieval test.

  Attributes:
    name: of the domain.
    query: images that are asked for.
    gallery: images that are ranked.
  """

  name: str
  query: Images
  gallery: Images


class Federation(NamedTuple):
  """All the images of a run.

  Attributes:
    clients: sorted by name, the canonical order.
    targets: retrieval tests on domains no client has.
    image_shape: `(H, W, ch)`.
    mean: per channel, of values in 0..1.
    std: per channel.
    digest: hash of what the images were made from.
  """

  clients: tuple[ClientData, ...]
  targets: tuple[Target, ...]
  image_shape: tuple[int, int, int]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  digest: str


def by_domain(domains: Sequence[Images]) -> tuple[ClientData, ...]:
  """Makes one client of every domain, labels dense, sorted by name.

  Raises:
    DataError: for a domain without images, a name given twice, or two names
      whose hashes collide.
  """
  clients = []
  for domain in sorted(domains, key=lambda d: d.name):
    if not len(domain.identities):
      raise errors.DataError('no images', domain.name, 'remove the client')
    labels = np.unique(domain.identities, return_inverse=True)[1]
    clients.append(
      ClientData(
        domain.name,
        domain.images,
        labels.astype(np.int32),
        domain.cameras.astype(np.int32),
        domain.modalities.astype(np.int32),
        int(labels.max()) + 1,
      )
    )
  uids = [keys.client_uid(c.name) for c in clients]
  if len(set(uids)) < len(uids):
    twice = [c.name for c in clients if uids.count(keys.client_uid(c.name)) > 1]
    raise errors.DataError(
      f'client names are not unique: {twice}', 'data.sources', 'name each once'
    )
  return tuple(clients)


def rows_of_query(rule: str, domain: Images, cameras: Sequence[str]):
  """Returns which images of a target domain are queries, bool `[M]`.

  Args:
    rule: 'camera=NAME[+NAME...]' for all images of these cameras, 'first' for
      the first image of each identity, 'first_per_camera' for the first of each
      identity in each camera.
    domain: the images, in canonical order.
    cameras: name of each camera number.

  Raises:
    ConfigError: for an unknown rule or camera.
  """
  if rule.startswith('camera='):
    wanted = rule.removeprefix('camera=').split('+')
    unknown = [name for name in wanted if name not in cameras]
    if unknown:
      raise errors.ConfigError(
        f'no camera {unknown[0]!r} in {domain.name}',
        'data.query',
        f'cameras are {", ".join(cameras[:20])}',
      )
    numbers = [cameras.index(name) for name in wanted]
    return np.isin(domain.cameras, numbers)
  if rule not in ('first', 'first_per_camera'):
    raise errors.ConfigError(
      f'unknown query rule {rule!r}',
      'data.query',
      "'camera=NAME', 'first' or 'first_per_camera'",
    )
  columns = [domain.identities]
  if rule == 'first_per_camera':
    columns.append(domain.cameras)
  first = np.unique(np.stack(columns), axis=1, return_index=True)[1]
  chosen = np.zeros(len(domain.identities), bool)
  chosen[first] = True
  return chosen


def split_target(domain: Images, query: np.ndarray) -> Target:
  """Splits a domain into a retrieval test; images not asked for are ranked."""
  return Target(
    domain.name,
    domain.take(np.flatnonzero(query)),
    domain.take(np.flatnonzero(~query)),
  )
