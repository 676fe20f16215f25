"""Splits domains into clients with images and label spaces.

A domain is a data set or a synthetic place. A label space is the set of
identities that the classifier of a client distinguishes. The published settings
of federated re-identification differ in two points: the partition of the images
(one client per data set, camera or group of identities, or one client for all
images) and the label space (the identities of the client, of its domain, or of
all domains).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.types import ClientData
from fedreid_jax.data.federation import Images
from fedreid_jax.data.split import partition

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
# Partition of each domain, whether all domains become one client, label space.
CLIENT_SPLITS: dict[ClientSplit, tuple[partition.Partition, bool, str]] = {
  'by_dataset': (partition.whole, False, 'own'),
  'by_camera': (partition.by_camera, False, 'own'),
  'by_identity': (partition.by_identity, False, 'own'),
  'centralised': (partition.whole, True, 'all'),
  'standalone': (partition.whole, False, 'own'),
  # A single domain is divided; each client may have any of its classes.
  'iid': (partition.iid, False, 'domain'),
  'dirichlet': (partition.dirichlet, False, 'domain'),
  # Visible-infrared methods of L2RW, which calls a data set an entity: each
  # client has one camera or one entity, or one client has all entities.
  'camera_independent': (partition.by_camera, False, 'domain'),
  'entity_independent': (partition.whole, False, 'all'),
  'entity_shared': (partition.whole, True, 'all'),
}
# 'by_identity' has as many clients as a domain has cameras.
OF_CAMERAS = tuple(
  name
  for name, (divide, _, _) in CLIENT_SPLITS.items()
  if divide in (partition.by_camera, partition.by_identity)
)
OF_ONE_DOMAIN = ('standalone', 'iid', 'dirichlet')


def make_clients(
  domains: Sequence[Images],
  split: ClientSplit,
  seed: int,
  labels: Labels = '',
  *,
  num_clients: int,
  concentration: float,
) -> tuple[ClientData, ...]:
  """Splits the images of domains into clients, sorted by name.

  Labels are numbers from 0 in the label space of the client. It consists of the
  identities of all domains for 'centralised', 'entity_independent' and
  'entity_shared', of the identities of its domain for 'camera_independent',
  'iid' and 'dirichlet', and of the identities of the client for other splits.

  Args:
    domains: training domains; identities are unique within each.
    split: one of `CLIENT_SPLITS`.
    seed: seed of random partitions.
    labels: '' for the label space above. A shared classifier needs another
      label space if each client numbers only the identities that it has:
      'concat' numbers the identities of one client after the identities of
      another, 'max' has as many labels as the largest client, so that
      identities of different clients share labels, and 'global' numbers the
      identities of all domains.
    num_clients: number of clients of 'iid' and 'dirichlet'.
    concentration: parameter of 'dirichlet'.

  Raises:
    DataError: if a domain has no images or too few, if names of clients are not
      unique or have the same hash, or if several domains are given for a split
      of one domain.
  """
  divide, merge, space = CLIENT_SPLITS[split]
  options = partition.Options(seed, num_clients, concentration)
  if labels:
    space = 'all' if labels == 'global' else 'own'
  domains = sorted(domains, key=lambda d: d.name)
  _check_domains(domains, split)
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
    clients += [_client(part, columns) for part in divide(numbered, options)]
  if merge:
    clients = [_merged(clients)]
  clients.sort(key=lambda c: c.name)
  _check_names([c.name for c in clients])
  # After sorting, so that 'concat' depends on names and not on the order given.
  if labels in ('concat', 'max'):
    clients = _one_space(clients, labels)
  return tuple(clients)


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
  """Returns (first label, columns of the classifier) of each client.

  Args:
    sizes: number of identities of each client.
    labels: 'concat' or 'max' for a shared classifier, see `make_clients`; for
      other values each client numbers its identities from 0.
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
  )


def _merged(clients: Sequence[ClientData]) -> ClientData:
  """Merges clients of one label space."""
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
  )


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
