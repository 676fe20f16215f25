"""Images by domain, with training and test sets."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData


class Images(NamedTuple):
  """Images of one domain, or of one side of a retrieval test.

  Attributes:
    name: of the domain.
    images: returns the pixels, possibly memory-mapped.
    identities: unique within the domain only.
    cameras: number of the camera of each image.
    modalities: 0 visible, 1 infrared.
  """

  name: str
  images: Callable[[], UInt8[np.ndarray, 'M H W ch']]
  identities: Int32[np.ndarray, ' M']
  cameras: Int32[np.ndarray, ' M']
  modalities: Int32[np.ndarray, ' M']

  def take(self, rows: Int[np.ndarray, ' rows']) -> 'Images':
    """Returns the images at some rows."""
    return Images(
      self.name,
      lambda: self.images()[rows],
      self.identities[rows],
      self.cameras[rows],
      self.modalities[rows],
    )


class Trial(NamedTuple):
  """One retrieval test.

  Attributes:
    query: rows of the target's query images.
    gallery: rows of the gallery images.
  """

  query: Int[np.ndarray, ' Q']
  gallery: Int[np.ndarray, ' P']


class Target(NamedTuple):
  """A domain to test on; the mean over its trials is reported.

  Attributes:
    name: of the domain.
    images: all images of any trial.
    trials: one, or as many as the protocol draws.
    protocol: name of its test protocol, '' if the configuration chooses it.
    direction: 'all', or query and gallery modality.
    splits: random draws behind the trials, stored with the results.
  """

  name: str
  images: Images
  trials: tuple[Trial, ...]
  protocol: str = ''
  direction: str = 'all'
  splits: Any = None


class Source(NamedTuple):
  """Domains of a source of images.

  Attributes:
    domains: training domains.
    targets: domains to test on.
    digest: hash of the inputs of the images.
    public: public images, or None.
    notices: warnings about this combination of domains.
  """

  domains: tuple[Images, ...]
  targets: tuple[Target, ...]
  digest: str
  public: Images | None = None
  notices: tuple[str, ...] = ()


class Federation(NamedTuple):
  """All the images of a run.

  Attributes:
    clients: sorted by name, the canonical order.
    targets: tests on domains that no client has.
    image_shape: `(H, W, ch)`.
    mean: per channel, of values in 0..1.
    std: per channel.
    digest: hash of the inputs of the images.
    public: public images, or None; their identities are not used.
    notices: warnings about this combination of domains.
  """

  clients: tuple[ClientData, ...]
  targets: tuple[Target, ...]
  image_shape: tuple[int, int, int]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  digest: str
  public: Images | None = None
  notices: tuple[str, ...] = ()


def rows_of_query(
  rule: str, domain: Images, cameras: Sequence[str]
) -> Bool[np.ndarray, ' M']:
  """Returns a mask of the query images of a target domain.

  Args:
    rule: 'camera=NAME[+NAME...]' for all images of these cameras, 'first' for
      the first image of each identity, 'first_per_camera' for the first of each
      identity in each camera.
    domain: the images, in canonical order.
    cameras: names by camera number.

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


def split_target(
  domain: Images, query: Bool[np.ndarray, ' M'], protocol: str = ''
) -> Target:
  """Makes a retrieval test of a domain; the gallery is all that is no query.

  Args:
    domain: images.
    query: mask of the queries.
    protocol: name of the test protocol, '' if the configuration chooses it.

  Raises:
    DataError: when one side has no image.
  """
  if not query.any() or query.all():
    side = 'gallery' if query.any() else 'query'
    raise errors.DataError(
      f'no {side} image in {domain.name}', 'data.query', 'change the rule'
    )
  trial = Trial(np.flatnonzero(query), np.flatnonzero(~query))
  return Target(domain.name, domain, (trial,), protocol)
