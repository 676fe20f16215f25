"""Persons of clients, of whom shadow models are trained on a random half.

Half of the images of each person are for training, and no model is trained on
the other half.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fedreid_jax import errors
from fedreid_jax.apps.audit.member import membership
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import client_split

SMALLEST = 4  # images of a person: two for training, two others
FEWEST = 8  # persons
WHOLE = (client_split.whole, client_split.by_identity)
Features = Callable[[np.ndarray, np.ndarray], Float[np.ndarray, 'M D']]


class Persons(NamedTuple):
  """The persons of one client with enough images.

  Attributes:
    client: client with all its images.
    trained: rows of the images for training.
    asked: rows of the images on which no model is trained.
    trained_of: person of each row in `trained`, from 0 to P - 1.
    asked_of: person of each row in `asked`.
  """

  client: ClientData
  trained: Int[np.ndarray, ' M']
  asked: Int[np.ndarray, ' m']
  trained_of: Int[np.ndarray, ' M']
  asked_of: Int[np.ndarray, ' m']

  @property
  def number(self) -> int:
    """Number of persons, `P`."""
    return int(self.trained_of.max()) + 1 if len(self.trained_of) else 0

  def some(self, most: int) -> 'Persons':
    """Returns the first `most` persons, of a client with only their images."""
    ours, others = self.trained_of < most, self.asked_of < most
    trained, asked = self.trained[ours], self.asked[others]
    rows = np.sort(np.r_[trained, asked])
    return Persons(
      _with_rows(self.client, rows),
      np.searchsorted(rows, trained),
      np.searchsorted(rows, asked),
      self.trained_of[ours],
      self.asked_of[others],
    )

  def members(self, included: Bool[np.ndarray, ' P']) -> ClientData:
    """Returns the client with the images for training of some persons."""
    rows = self.trained[included[self.trained_of]]
    return _with_rows(self.client, rows)

  def scores(self, features: Features, case: str) -> np.ndarray:
    """Returns the scores of the persons in a model, `[P]`.

    Args:
      features: `(images, modalities) -> features` of the model.
      case: one of `CASES`.
    """
    same = case == CASES[1]
    rows = self.trained if same else self.asked
    images = self.client.images()[rows]
    found = features(images, self.client.modalities[rows])
    return membership.compactness(
      found, self.trained_of if same else self.asked_of
    )


CASES = ('other images', 'same images')


def _with_rows(
  client: ClientData, rows: Int[np.ndarray, ' rows']
) -> ClientData:
  return client._replace(
    images=lambda: client.images()[rows],
    labels=client.labels[rows],
    cameras=client.cameras[rows],
    modalities=client.modalities[rows],
  )


def of_client(client: ClientData) -> Persons:
  """Returns the persons of a client with `SMALLEST` images or more.

  Every second image of a person, in the order of the cameras, is for training.
  """
  number = np.bincount(client.labels)
  # Sorted by camera, both halves of a person have images of most cameras.
  order = np.lexsort((client.cameras, client.labels))
  order = order[number[client.labels[order]] >= SMALLEST]
  # The maximum is the position of the person's first image, so that `place`
  # counts the images of each person from 0.
  first = np.r_[True, np.diff(client.labels[order]) != 0]
  place = np.arange(len(order)) - np.maximum.accumulate(
    np.where(first, np.arange(len(order)), 0)
  )
  person = np.cumsum(first) - 1
  even = place % 2 == 0
  return Persons(client, order[even], order[~even], person[even], person[~even])


def of_clients(
  clients: Sequence[ClientData], split: client_split.ClientSplit
) -> tuple[Persons, ...]:
  """Returns the persons of all clients.

  Args:
    clients: of a run.
    split: `data.client_split` of the run.

  Raises:
    ConfigError: if a person may be at several clients.
    DataError: if too few persons have enough images.
  """
  # A person at two clients could be a member of one and not of the other.
  if client_split.CLIENT_SPLITS[split][0] not in WHOLE:
    raise errors.ConfigError(
      f'with data.client_split={split!r} a person is at several clients',
      '--attack',
      'give a run whose clients have different persons',
    )
  found = tuple(of_client(client) for client in clients)
  few = min(found, key=lambda persons: persons.number)
  if few.number < FEWEST:
    raise errors.DataError(
      f'{few.number} persons have {SMALLEST} images or more, the audit needs '
      f'{FEWEST}',
      f'client {few.client.name}',
      'give a run with more images of each person',
    )
  return found


def half(number: int, rng: np.random.Generator) -> Bool[np.ndarray, ' P']:
  """Returns whether each of some persons is in a random half, bool `[P]`."""
  return rng.permutation(number) < number // 2
