"""Persons who are asked for after some have left a run.

They are the departed, and as non-members persons of the same domains of whom no
client of the run, or of the run without the departed, has an image.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fedreid_jax import errors
from fedreid_jax.apps.audit import shadow
from fedreid_jax.config import validation as checks
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import client_split, departures, validation
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.training.forgetting import Left

FEWEST = 8  # persons whom no run had
IMAGES = 2  # of a person, whose features are compared with each other


class Group(NamedTuple):
  """The persons of a domain who are asked for."""

  domain: str
  images: np.ndarray  # uint8 [M, H, W, ch]
  persons: Int[np.ndarray, ' M']  # from 0; those of the departed come first
  modalities: Int[np.ndarray, ' M']
  departed: int  # number of them
  client: str  # '' if the client left as a whole


def groups(left: Left) -> tuple[Group, ...]:
  """The departed and persons whom no run had, by domain.

  Raises:
    ConfigError: if the departed were not trained on, are at other clients too,
      or if there are too few persons of their domain outside of the training.
  """
  config = left.config
  if not left.touched:
    raise errors.ConfigError(
      'no client trained on them, so that there is nothing to find',
      '--judge',
      'leave it out',
    )
  split = config.data.client_split
  if client_split.CLIENT_SPLITS[split][0] not in shadow.WHOLE:
    raise errors.ConfigError(
      f'with data.client_split={split!r} a person is at several clients',
      '--judge',
      'give a run whose clients have different persons',
    )
  if config.data.poison:
    raise errors.ConfigError(
      'labels of poisoned images are not those of persons',
      '--judge',
      'give a run without data.poison',
    )
  options = checks.arguments(config, config.data.source)
  domains = data_lib.read(config.data, options=options).domains
  found = []
  for domain in domains:
    parts = [
      client
      for client in left.federation.clients
      if f'{client.name}.'.startswith(f'{domain.name}.')
      and not {client.name, domain.name}.isdisjoint(left.new)
    ]
    if parts:
      found.append(_group(left, _of_clients(domain.name, parts), ''))
    # The client of several domains has another name than each of them.
    elif domain.name in left.new:
      found.append(_group(left, _trained(left, domain), ''))
  for one in departures.removed(domains, left.new):
    found.append(_group(left, _trained(left, one), one.name))
  return tuple(found)


def _trained(left: Left, gone: Images) -> Images:
  """The departed of a domain without those whom the run held out."""
  held = _tests(left.federation).get(f'{validation.NAME}{gone.name}')
  if held is None:
    return gone
  return gone.take(np.flatnonzero(~np.isin(gone.identities, held.people)))


def _of_clients(domain: str, clients: Sequence[ClientData]) -> Images:
  """The images of the clients of a domain, who have different persons."""
  people, first = [], 0
  for client in clients:
    labels = client.labels if client.labelled else client.identities
    people.append(np.asarray(labels) + np.int32(first))
    first = 1 + int(people[-1].max())
  return Images(
    domain,
    lambda: np.concatenate([client.images() for client in clients]),
    np.concatenate(people),
    np.concatenate([client.cameras for client in clients]),
    np.concatenate([client.modalities for client in clients]),
  )


def _tests(federation: Federation) -> dict[str, Images]:
  tests = federation.targets
  return {test.name: test.images for test in tests if test.task == 'retrieval'}


def _group(left: Left, gone: Images, client: str) -> Group:
  others = _others(left, gone.name)
  sides = [_numbered(gone), _numbered(others)]
  first = len(np.unique(sides[0][1]))
  if not first:
    raise errors.ConfigError(
      f'the departed of {gone.name} have fewer than {IMAGES} images each in '
      'the training',
      '--judge',
      'leave it out',
    )
  rows = [side[0] for side in sides]
  return Group(
    gone.name,
    np.concatenate(
      [one.images()[own] for one, own in zip((gone, others), rows, strict=True)]
    ),
    np.concatenate([sides[0][1], sides[1][1] + first]),
    np.concatenate([gone.modalities[rows[0]], others.modalities[rows[1]]]),
    first,
    client,
  )


def _numbered(images: Images) -> tuple[np.ndarray, np.ndarray]:
  """Rows of persons with enough images, and these persons from 0."""
  people, counts = np.unique(images.identities, return_counts=True)
  enough = people[(counts >= IMAGES) & (people >= 0)]
  rows = np.flatnonzero(np.isin(images.identities, enough))
  return rows, np.searchsorted(enough, images.identities[rows])


def _others(left: Left, domain: str) -> Images:
  """Persons of a domain whom neither the run nor the rest of it had."""
  tests = _tests(left.federation), _tests(left.others)
  for name in (domain, f'{validation.NAME}{domain}'):
    if name not in tests[0] or name not in tests[1]:
      continue
    found = tests[0][name]
    # Without the departed, other persons may have been held out.
    both = np.intersect1d(found.people, tests[1][name].people)
    found = found.take(np.flatnonzero(np.isin(found.identities, both)))
    found = _unseen(found, (*left.federation.clients, *left.others.clients))
    if len(np.unique(_numbered(found)[1])) >= FEWEST:
      return found
  raise errors.ConfigError(
    f'fewer than {FEWEST} persons of the domain {domain} are in no run',
    'data.targets',
    'give --set=data.targets=... with the domains of the departed and '
    '--set=data.allow_overlap=True, or train with evaluation.validation',
  )


def _unseen(images: Images, clients: Sequence[ClientData]) -> Images:
  """Without the persons of whom a client has one of these images.

  The test of a domain that is trained on may show the same persons, as that of
  a folder with `data.allow_overlap`. Numbers of persons may differ, so that the
  pixels are compared.
  """
  seen = {digest for client in clients for digest in _digests(client)}
  shown = np.asarray([one in seen for one in _digests(images)], bool)
  trained = np.unique(images.identities[shown])
  return images.take(np.flatnonzero(~np.isin(images.identities, trained)))


def _digests(images: Images | ClientData) -> Iterator[bytes]:
  for image in images.images():
    yield hashlib.sha256(image.tobytes()).digest()
