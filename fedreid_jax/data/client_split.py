"""Splits domains into clients with images and label spaces.

A domain is a data set or a synthetic place. A label space is the set of
identities that the classifier of a client distinguishes. The published settings
of federated re-identification differ in two points: the partition of the images
(one client per data set, camera or group of identities, or one client for all
images) and the label space (the identities of the client, of its domain, or of
all domains).

Random partitions depend only on the seed, the name of the domain and the other
options. Every image belongs to at most one client.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int32

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.types import ClientData
from fedreid_jax.data.federation import Images

ClientSplit = Literal[
  'by_dataset',
  'by_camera',
  'by_identity',
  'centralised',
  'standalone',
  'iid',
  'dirichlet',
  'camera_independent',
  'entity_independent',
  'entity_shared',
]
Labels = Literal['', 'concat', 'max', 'global']


class Options(NamedTuple):
  """Parameters of a partition.

  Attributes:
    concentration: parameter of the Dirichlet distribution. Above 10 every class
      is divided almost evenly among the clients; below 0.1 almost all images
      of a class belong to one client.
  """

  seed: int
  num_clients: int  # `N` of 'iid' and 'dirichlet'
  concentration: float


Partition = Callable[[Images, Options], list[Images]]


def whole(domain: Images, options: Options) -> list[Images]:
  """Assigns all images to one client."""
  del options
  return [domain]


def by_camera(domain: Images, options: Options) -> list[Images]:
  """Assigns the images of each camera to one client."""
  del options
  return [
    domain.take(np.flatnonzero(domain.cameras == camera))._replace(
      name=f'{domain.name}.camera{camera}'
    )
    for camera in np.unique(domain.cameras)
  ]


def by_identity(domain: Images, options: Options) -> list[Images]:
  """Assigns equal numbers of random identities to as many clients as cameras.

  Identities that remain after the division are not used. A DataError is raised
  for fewer identities than cameras.
  """
  people = np.unique(domain.identities)
  clients = len(np.unique(domain.cameras))
  share = len(people) // clients
  if not share:
    raise errors.DataError(
      f'{errors.counted(len(people), "identity", "identities")} for '
      f'{errors.counted(clients, "client")}',
      domain.name,
      'use another data.client_split',
    )
  order = _generator(domain, options).permutation(people)
  rows = [
    np.flatnonzero(
      np.isin(domain.identities, order[k * share : (k + 1) * share])
    )
    for k in range(clients)
  ]
  return _parts(domain, rows)


def iid(domain: Images, options: Options) -> list[Images]:
  """Assigns images at random; the clients' sizes differ by at most one image.

  A DataError is raised for fewer images than clients.
  """
  _check_enough(domain, options)
  order = _generator(domain, options).permutation(len(domain.identities))
  return _parts(domain, np.array_split(order, options.num_clients))


def dirichlet(domain: Images, options: Options) -> list[Images]:
  """Divides each class among N clients by random Dirichlet weights.

  This is the partition of Yurochkin et al., Bayesian nonparametric federated
  learning of neural networks, ICML 2019, section 4. Each class has weights
  `p ~ Dir(concentration)`, and its shuffled images are divided at the
  cumulative weights.

  Raises:
    DataError: when there are fewer images than clients.
  """
  _check_enough(domain, options)
  rng, num = _generator(domain, options), options.num_clients
  rows: list[list[int]] = [[] for _ in range(num)]
  for label in np.unique(domain.identities):
    order = rng.permutation(np.flatnonzero(domain.identities == label))
    weights = rng.dirichlet(np.full(num, options.concentration))
    cuts = np.rint(np.cumsum(weights)[:-1] * len(order)).astype(int)
    for own, more in zip(rows, np.split(order, cuts), strict=True):
      own.extend(more.tolist())
  # A client without images receives the last image of the largest client (the
  # first of several largest ones), since no client may be empty.
  while not all(rows):
    min(rows, key=len).append(max(rows, key=len).pop())
  return _parts(domain, rows)


def _generator(domain: Images, options: Options) -> np.random.Generator:
  return np.random.default_rng([options.seed, prng.client_uid(domain.name)])


def _parts(domain: Images, rows) -> list[Images]:
  return [
    domain.take(np.sort(own))._replace(name=f'{domain.name}.part{k}')
    for k, own in enumerate(rows)
  ]


def _check_enough(domain: Images, options: Options) -> None:
  if len(domain.identities) < options.num_clients:
    raise errors.DataError(
      f'{errors.counted(len(domain.identities), "image")} for '
      f'{errors.counted(options.num_clients, "client")}',
      domain.name,
      'lower data.num_clients',
    )


# Partition of each domain, whether all domains become one client, label space.
CLIENT_SPLITS: dict[ClientSplit, tuple[Partition, bool, str]] = {
  'by_dataset': (whole, False, 'own'),
  'by_camera': (by_camera, False, 'own'),
  'by_identity': (by_identity, False, 'own'),
  'centralised': (whole, True, 'all'),
  'standalone': (whole, False, 'own'),
  # A single domain is divided; each client may have any of its classes.
  'iid': (iid, False, 'domain'),
  'dirichlet': (dirichlet, False, 'domain'),
  # Visible-infrared methods of L2RW, which calls a data set an entity: each
  # client has one camera or one entity, or one client has all entities.
  'camera_independent': (by_camera, False, 'domain'),
  'entity_independent': (whole, False, 'all'),
  'entity_shared': (whole, True, 'all'),
}
# 'by_identity' has as many clients as a domain has cameras.
OF_CAMERAS = tuple(
  name
  for name, (divide, _, _) in CLIENT_SPLITS.items()
  if divide in (by_camera, by_identity)
)
ALL = 'all'  # in place of the names of all domains
OF_ONE_DOMAIN = ('standalone', 'iid', 'dirichlet')


def make_clients(
  domains: Sequence[Images],
  split: ClientSplit,
  seed: int,
  labels: Labels = '',
  *,
  num_clients: int,
  concentration: float,
  undivided: Sequence[str] = (),
) -> tuple[ClientData, ...]:
  """Splits the images of domains into clients, sorted by name.

  Labels are numbers from 0 in the label space of the client. It consists of the
  identities of all domains for 'centralised', 'entity_independent' and
  'entity_shared', of the identities of its domain for 'camera_independent',
  'iid' and 'dirichlet', and of the identities of the client for other splits.

  A shared classifier needs another label space if each client numbers only the
  identities that it has: with `labels='concat'` the identities of one client
  follow the identities of another, 'max' has as many labels as the largest
  client, so that identities of different clients share labels, and 'global'
  numbers the identities of all domains.

  Args:
    undivided: names of domains that are one client each.

  Raises:
    ConfigError: if none of several domains has a name in `undivided`.
    DataError: if a domain has no images or too few, if names of clients are not
      unique or have the same hash, or if several domains are given for a split
      of one domain.
  """
  divide, merge, space = CLIENT_SPLITS[split]
  options = Options(seed, num_clients, concentration)
  if labels:
    space = 'all' if labels == 'global' else 'own'
  domains = sorted(domains, key=lambda d: d.name)
  _check_domains(domains, split)
  _check_undivided(undivided, [domain.name for domain in domains])
  sizes = [len(np.unique(d.identities)) for d in domains]
  clients, first = [], 0
  for domain, size in zip(domains, sizes, strict=True):
    dense = np.unique(domain.identities, return_inverse=True)[1]
    dense = dense.astype(np.int32)
    if space == 'all':
      dense = dense + np.int32(first)
    columns = {'own': 0, 'domain': size, 'all': sum(sizes)}[space]
    first += size
    numbered = domain._replace(identities=dense)
    parts = whole if domain.name in undivided else divide
    clients += [_client(part, columns) for part in parts(numbered, options)]
  if merge:
    clients = [_merged(clients)]
  clients.sort(key=lambda c: c.name)
  _check_names([c.name for c in clients])
  # After sorting, so that 'concat' depends on names and not on the order given.
  if labels in ('concat', 'max'):
    clients = _one_space(clients, labels)
  return tuple(clients)


def hide_labels(
  clients: Sequence[ClientData], domains: Sequence[str]
) -> tuple[ClientData, ...]:
  """Replaces the labels of the clients of some domains by indices of images.

  Args:
    domains: names of domains, or 'all'. A single client may have none of
      them, because a real site knows no other one.

  Raises:
    ConfigError: for a domain that none of several clients has.
  """

  def has(client: ClientData, domain: str) -> bool:
    # A part of a domain has its name and a number or the like.
    return f'{client.name}.'.startswith(f'{domain}.') or domain == ALL

  for name in domains:
    if len(clients) > 1 and not any(has(client, name) for client in clients):
      raise errors.ConfigError(
        f'no client has the domain {name!r}',
        'data.unlabelled',
        errors.one_of(name, [client.name for client in clients]),
      )

  def hidden(client: ClientData) -> ClientData:
    if not any(has(client, name) for name in domains):
      return client
    number = np.arange(client.num_images, dtype=np.int32)
    return client._replace(
      labels=number, num_identities=len(number), identities=client.labels
    )

  return tuple(map(hidden, clients))


def _check_domains(domains: Sequence[Images], split: str) -> None:
  for domain in domains:
    if not len(domain.identities):
      raise errors.DataError(
        'no images', domain.name, 'remove the domain from data.sources'
      )
  if split in OF_ONE_DOMAIN and len(domains) > 1:
    raise errors.DataError(
      f'{split} training of {len(domains)} domains',
      'data.sources',
      'list only one domain',
    )


def _check_undivided(undivided: Sequence[str], names: Sequence[str]) -> None:
  for name in undivided:
    # A real site knows its own domain only.
    if len(names) > 1 and name not in names:
      raise errors.ConfigError(
        f'no domain {name!r}', 'data.undivided', errors.one_of(name, names)
      )


def _one_space(
  clients: Sequence[ClientData], labels: Labels
) -> list[ClientData]:
  """Renumbers the identities of each client for a shared classifier."""
  spaces = label_spaces([c.num_identities for c in clients], labels)
  return [
    c._replace(labels=c.labels + np.int32(first), num_identities=columns)
    for c, (first, columns) in zip(clients, spaces, strict=True)
  ]


def label_spaces(sizes: Sequence[int], labels: Labels) -> list[tuple[int, int]]:
  """First label and classifier columns of clients with `sizes` identities.

  With `labels` other than 'concat' and 'max', each client numbers its
  identities from 0, see `make_clients`.
  """
  if labels == 'concat':
    first = np.cumsum([0, *sizes[:-1]])
    return [(int(offset), sum(sizes)) for offset in first]
  return [(0, max(sizes) if labels == 'max' else size) for size in sizes]


def _client(part: Images, columns: int) -> ClientData:
  labels = part.identities
  if not columns:
    labels = np.unique(labels, return_inverse=True)[1]
    columns = int(labels.max()) + 1
  return ClientData(
    part.name,
    part.images,
    labels.astype(np.int32),
    part.cameras.astype(np.int32),
    part.modalities.astype(np.int32),
    columns,
    tracklets=part.tracklets,
  )


def _merged(clients: Sequence[ClientData]) -> ClientData:
  # Cameras of different domains have the same numbers and are not the same.
  stride = 1 + max(int(c.cameras.max()) for c in clients)
  return ClientData(
    '+'.join(c.name for c in clients),
    lambda: np.concatenate([c.images() for c in clients]),
    np.concatenate([c.labels for c in clients]),
    np.concatenate(
      [c.cameras + np.int32(k * stride) for k, c in enumerate(clients)]
    ),
    np.concatenate([c.modalities for c in clients]),
    clients[0].num_identities,
    tracklets=_merged_tracklets(clients),
  )


def _merged_tracklets(
  clients: Sequence[ClientData],
) -> Int32[np.ndarray, ' M'] | None:
  """Tracklets of all clients, numbered from 0; None if some have none."""
  every, first = [], 0
  for client in clients:
    if client.tracklets is None:
      return None
    own = np.unique(client.tracklets, return_inverse=True)[1]
    every.append(first + own.astype(np.int32))
    first += int(own.max()) + 1
  return np.concatenate(every)


def _check_names(names: list[str]) -> None:
  # The random numbers of a client follow from the hash of its name.
  uids = [prng.client_uid(name) for name in names]
  twice = sorted(
    {n for n, u in zip(names, uids, strict=True) if uids.count(u) > 1}
  )
  if twice:
    raise errors.DataError(
      f'client names are not unique: {twice}',
      'data.sources',
      'list each domain once',
    )
