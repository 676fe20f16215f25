"""Divides the images of a domain among clients.

A partition is a function `(domain, options) -> images of each client`. Random
partitions depend only on the seed, the name of the domain and the other
options. Every image belongs to at most one client.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.data.federation import Images


class Options(NamedTuple):
  """Parameters of a partition.

  Attributes:
    seed: seed of random partitions.
    num_clients: number of clients `N` of 'iid' and 'dirichlet'.
    concentration: parameter of the Dirichlet distribution. Above 10 every class
      is divided almost evenly among the clients; below 0.1 almost all images
      of a class belong to one client.
  """

  seed: int
  num_clients: int
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

  If the number of identities is not a multiple of the number of clients, the
  remaining identities are not used.

  Raises:
    DataError: when there are fewer identities than cameras.
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

  Raises:
    DataError: when there are fewer images than clients.
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
  """Returns the images of each client, in the order of the domain."""
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
