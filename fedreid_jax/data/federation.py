"""Images by domain, with training and test sets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.evaluation.protocol import protocols


class Images(NamedTuple):
  """Images of one domain, or of one side of a retrieval test.

  Attributes:
    name: name of the domain.
    images: function that returns the pixels, possibly memory-mapped.
    identities: person of each image, a number that is unique within the domain
      only.
    cameras: camera of each image.
    modalities: 0 visible, 1 infrared.
  """

  name: str
  images: Callable[[], UInt8[np.ndarray, 'M H W ch']]
  identities: Int32[np.ndarray, ' M']
  cameras: Int32[np.ndarray, ' M']
  modalities: Int32[np.ndarray, ' M']

  def take(self, rows: Int[np.ndarray, ' rows']) -> 'Images':
    """Returns the images at some rows, whose pixels are read when needed."""
    return Images(
      self.name,
      # A domain may be rendered or opened at the first call only.
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
    name: name of the domain.
    images: the images of all trials.
    trials: one trial, or as many as the protocol draws.
    protocol: name of its test protocol, '' if the configuration chooses it.
    direction: 'all', or the modalities of query and gallery.
    splits: the random draws of the trials, stored with the results.
    query: rule that chose the queries, for users; '' if the data set fixes it.
  """

  name: str
  images: Images
  trials: tuple[Trial, ...]
  protocol: str = ''
  direction: str = 'all'
  splits: Any = None
  query: str = ''

  @property
  def task(self) -> str:
    """Kind of the test, 'classification' or 'retrieval' as in `data.task`."""
    classified = self.protocol == protocols.ACCURACY
    return 'classification' if classified else 'retrieval'


class Source(NamedTuple):
  """Domains of a source of images.

  Attributes:
    domains: training domains.
    targets: domains to test on.
    digest: hash of the inputs of the images.
    public: public images, or None.
    notices: warnings about this combination of domains.
    sources: training domains as `data.sources` would list them, if the source
      has chosen them.
  """

  domains: tuple[Images, ...]
  targets: tuple[Target, ...]
  digest: str
  public: Images | None = None
  notices: tuple[str, ...] = ()
  sources: tuple[str, ...] = ()


class Federation(NamedTuple):
  """The clients, tests and public images of a run.

  Attributes:
    clients: sorted by name, the canonical order.
    targets: tests on domains that no client has.
    image_shape: `(H, W, ch)`.
    mean: per channel, of values in 0..1.
    std: per channel.
    digest: hash of the inputs of the images.
    public: public images, or None; their identities are not used.
    notices: warnings about this combination of domains.
    sources: as in `Source`.
  """

  clients: tuple[ClientData, ...]
  targets: tuple[Target, ...]
  image_shape: tuple[int, int, int]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  digest: str
  public: Images | None = None
  notices: tuple[str, ...] = ()
  sources: tuple[str, ...] = ()


def split_target(
  domain: Images, query: Bool[np.ndarray, ' M'], protocol: str = ''
) -> Target:
  """Makes a retrieval test of a domain.

  Args:
    domain: images.
    query: mask of the queries; all other images are the gallery.
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
