"""The images of a run by domain: training sets, tests and public images."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Int32, UInt8

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import protocols, tracklets

# Identity of the images of nobody, such as the distractors of Market-1501: they
# are never trained on and no query, and match none in the gallery of a test.
# Images of the junk identity of a protocol are not even in the gallery.
NOBODY = -2


class Images(NamedTuple):
  """Images of one domain; the pixels may be memory-mapped."""

  name: str
  images: Callable[[], UInt8[np.ndarray, 'M H W ch']]
  identities: Int32[np.ndarray, ' M']  # unique in the domain, or `NOBODY`
  cameras: Int32[np.ndarray, ' M']
  modalities: Int32[np.ndarray, ' M']  # 0 visible, 1 infrared
  # Number of the tracklet of each frame, see `data.tracklets`; None: no frames.
  tracklets: Int32[np.ndarray, ' M'] | None = None
  persons: tuple[str, ...] = ()  # names by identity, () if they have none

  def take(self, rows: Int[np.ndarray, ' rows']) -> 'Images':
    """Images at some rows, whose pixels are read when needed."""
    return Images(
      self.name,
      # A domain may be rendered or opened at the first call only.
      lambda: self.images()[rows],
      self.identities[rows],
      self.cameras[rows],
      self.modalities[rows],
      None if self.tracklets is None else self.tracklets[rows],
      self.persons,
    )

  @property
  def people(self) -> Int32[np.ndarray, ' people']:
    """Identities of the persons, ascending."""
    return np.unique(self.identities[self.identities >= 0])


class Trial(NamedTuple):
  """One retrieval test, as rows of the images of a target."""

  query: Int[np.ndarray, ' Q']  # of tracklets, the first frames
  gallery: Int[np.ndarray, ' P']


class Target(NamedTuple):
  """A domain to test on; the mean over its trials is reported."""

  name: str
  images: Images  # of all trials
  trials: tuple[Trial, ...]  # one, or as many as the protocol draws
  protocol: str = ''  # '' if the configuration chooses it
  direction: str = 'all'  # 'all', or modalities of both sides
  splits: Any = None  # random draws, stored with the results
  query: str = ''  # rule for users, '' if the data fixes it

  @property
  def task(self) -> str:
    """Kind of the test, 'classification' or 'retrieval' as in `data.task`."""
    classified = self.protocol == protocols.ACCURACY
    return 'classification' if classified else 'retrieval'


class Source(NamedTuple):
  """Domains of a source of images."""

  domains: tuple[Images, ...]  # for training
  targets: tuple[Target, ...]
  digest: str  # hash of the inputs of the images
  public: Images | None = None
  notices: tuple[str, ...] = ()  # about this combination of domains
  sources: tuple[str, ...] = ()  # `data.sources` if the source chose them


class Federation(NamedTuple):
  """The clients, tests and public images of a run, see also `Source`."""

  clients: tuple[ClientData, ...]  # sorted by name, the canonical order
  targets: tuple[Target, ...]  # tests on domains that no client has
  image_shape: tuple[int, int, int]  # `(H, W, ch)`
  mean: tuple[float, ...]  # per channel, of values in 0..1
  std: tuple[float, ...]  # per channel, of values in 0..1
  digest: str
  public: Images | None = None  # their identities are not used
  notices: tuple[str, ...] = ()
  sources: tuple[str, ...] = ()


def split_target(
  domain: Images, query: Bool[np.ndarray, ' M'], protocol: str = ''
) -> Target:
  """Makes a retrieval test of the images `query` against all others.

  A DataError is raised when one side has no image.
  """
  if not query.any() or query.all():
    side = 'gallery' if query.any() else 'query'
    raise errors.DataError(
      f'no {side} image in {domain.name}', 'data.query', 'change the rule'
    )
  if domain.tracklets is not None:
    # A tracklet with a frame that asks is a query as a whole.
    query = np.isin(domain.tracklets, domain.tracklets[query])
  trial = Trial(
    tracklets.representatives(np.flatnonzero(query), domain.tracklets),
    tracklets.representatives(np.flatnonzero(~query), domain.tracklets),
  )
  return Target(domain.name, domain, (trial,), protocol)


def check_disjoint(sources: Sequence[str], targets: Sequence[str]) -> None:
  """Raises DataError for domains that are trained on and tested on."""
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

  Files are given by a hash of their content or pixels, by domain. The DataError
  has the number of common files of every two domains.
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
  """Raises DataError if the public set, '' for none, is also another domain."""
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

  `learned` has the identities of the training images, in any order, repeated
  or not.

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
    ConfigError: for an untested domain, or a label space for each client.
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
