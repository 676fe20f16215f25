"""The images of a run by domain: training sets, tests and public images."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.evaluation import protocols


class Images(NamedTuple):
  """Images of one domain.

  Attributes:
    images: returns the pixels, possibly memory-mapped.
    identities: person of each image, unique within the domain only.
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
  """One retrieval test, as rows of the images of a target."""

  query: Int[np.ndarray, ' Q']
  gallery: Int[np.ndarray, ' P']


class Target(NamedTuple):
  """A domain to test on; the mean over its trials is reported.

  Attributes:
    images: those of all trials.
    trials: one, or as many as the protocol draws.
    protocol: name of the test protocol, '' if the configuration chooses it.
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
    digest: hash of the inputs of the images.
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
    mean: per channel, of values in 0..1; so is `std`.
    public: their identities are not used.

  The other fields are those of `Source`.
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
    domain: images of both sides.
    query: mask of the queries; all other images are the gallery.
    protocol: as in `Target`.

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


def check_disjoint(sources: Sequence[str], targets: Sequence[str]) -> None:
  """Refuses to test on a training domain.

  Raises:
    DataError: naming the domains.
  """
  both = sorted(set(sources) & set(targets))
  if both:
    raise errors.DataError(
      f'{both} are trained on and tested on',
      'data.targets',
      'drop them from data.sources or set data.allow_overlap',
    )


def check_no_copies(
  sources: Mapping[str, Iterable[str]], targets: Mapping[str, Iterable[str]]
) -> None:
  """Refuses test files that are copies of training files under any name.

  Args:
    sources: SHA-256 of the training files, by domain.
    targets: SHA-256 of the test files, by domain.

  Raises:
    DataError: with the number of common files of every two domains.
  """
  known = {name: set(files) for name, files in sources.items()}
  copies = []
  for target, files in targets.items():
    own = set(files)
    copies += [
      f'{len(own & theirs)} of {errors.counted(len(own), "file")} of {target} '
      f'{"is" if len(own & theirs) == 1 else "are"} in {source} too'
      for source, theirs in known.items()
      if own & theirs
    ]
  if copies:
    raise errors.DataError(
      'trained on and tested on: ' + ', '.join(copies),
      'data.targets',
      'remove the copies, or set data.allow_overlap',
    )


def check_public(public: str, others: Sequence[str]) -> None:
  """Refuses a public set, '' for none, that is a training or test domain.

  Raises:
    DataError: naming the domain.
  """
  if public and public in others:
    raise errors.DataError(
      f'the public set {public!r} is trained on or tested on',
      'data.public',
      'name a domain that is neither source nor target',
    )


def class_target(
  images: Images, learned: Int[np.ndarray, ' learned']
) -> Target:
  """Makes a classification test of classes numbered as the clients do.

  Args:
    images: test images.
    learned: identities of the training images, in any order, repeated or not.

  Raises:
    DataError: without test images, or for a class without training images.
  """
  people = images.identities
  if not len(people):
    raise errors.DataError('no test images', images.name, 'make it a source')
  unknown = np.setdiff1d(people, learned)
  if len(unknown):
    raise errors.DataError(
      f'classes {unknown[:5].tolist()} are tested on and not trained on',
      images.name,
      'test fewer classes, or train on more',
    )
  # The rank among the training identities is the label that clients use, also
  # where the test shows only some of the classes.
  labels = np.searchsorted(np.unique(learned), people).astype(np.int32)
  rows = np.arange(len(people))
  # Nothing is ranked, so the gallery is empty.
  return Target(
    images.name,
    images._replace(identities=labels),
    (Trial(rows, rows[:0]),),
    protocols.ACCURACY,
  )


def check_classes(source: Source, clients: Sequence[ClientData]) -> None:
  """Refuses clients that do not number the classes as the targets do.

  Raises:
    ConfigError: for a domain other than the tested one, or a client split in
      which each client numbers only the identities that it has.
  """
  learned = [domain.name for domain in source.domains]
  tested = {target.name for target in source.targets}
  if len(learned) > 1 or tested - set(learned):
    raise errors.ConfigError(
      f'{learned} are trained on and {sorted(tested)} tested on',
      'data.sources',
      'classification is of one domain',
    )
  total = len(np.unique(source.domains[0].identities))
  own = {client.num_identities for client in clients}
  if own != {total}:
    raise errors.ConfigError(
      f'clients number {sorted(own)} classes of {total}',
      'data.client_split',
      "classification needs 'iid', 'dirichlet' or 'centralised'",
    )
