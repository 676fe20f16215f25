"""Shadow models: the configuration of a run, trained on half of the persons.

Half of the images of each person are for training, and no model is trained on
the other half.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fedreid_jax import errors
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import model_names
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import client_split
from fedreid_jax.training import build, loaded_run, loop
from fedreid_jax.training.loaded_run import LoadedRun

SMALLEST = 4  # images of a person: two for training, two others
FEWEST = 8  # persons
WHOLE = (client_split.whole, client_split.by_identity)
RANDOM = ('poisson', 'poisson_pk')  # samplers with a probability for a unit
CASES = ('other images', 'same images')
# `(images, modalities) -> features` of a model.
Features = Callable[[np.ndarray, np.ndarray], Float[np.ndarray, 'M D']]


class Persons(NamedTuple):
  """The persons of one client with enough images."""

  client: ClientData  # client with all its images
  trained: Int[np.ndarray, ' M']  # rows of the images for training
  # Rows of the images on which no model is trained.
  asked: Int[np.ndarray, ' m']
  # Person of each row in `trained`, from 0 to P - 1.
  trained_of: Int[np.ndarray, ' M']
  asked_of: Int[np.ndarray, ' m']  # person of each row in `asked`

  @property
  def number(self) -> int:
    """Number of persons, `P`."""
    return int(self.trained_of.max()) + 1 if len(self.trained_of) else 0

  def some(self, most: int) -> 'Persons':
    """The first `most` persons, of a client with only their images."""
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
    """The client with the images for training of some persons."""
    rows = self.trained[included[self.trained_of]]
    return _with_rows(self.client, rows)

  def scores(self, features: Features, case: str) -> np.ndarray:
    """The scores of the persons in a model, `[P]`, for one of CASES."""
    same = case == CASES[1]
    rows = self.trained if same else self.asked
    images = self.client.images()[rows]
    vectors = features(images, self.client.modalities[rows])
    return compactness(vectors, self.trained_of if same else self.asked_of)


def _with_rows(
  client: ClientData, rows: Int[np.ndarray, ' rows']
) -> ClientData:
  return client._replace(
    images=lambda: client.images()[rows],
    labels=client.labels[rows],
    cameras=client.cameras[rows],
    modalities=client.modalities[rows],
    tracklets=None if client.tracklets is None else client.tracklets[rows],
  )


def compactness(
  features: Float[np.ndarray, 'M D'], persons: Int[np.ndarray, ' M']
) -> Float[np.ndarray, ' P']:
  """The score of each person in one model, which training makes larger.

  It is the mean cosine between the features of the person, minus the mean
  cosine to the features of the nearest other person. Each person, from 0
  to P - 1, has two images or more.
  """
  norms = np.linalg.norm(features, axis=1, keepdims=True)
  directions = features / np.maximum(norms, 1e-12)
  counts = np.bincount(persons)
  sums = np.zeros((len(counts), features.shape[1]))
  np.add.at(sums, persons, directions)
  products = sums @ sums.T
  # The cosine of an image with itself is no evidence: it is subtracted.
  own = np.bincount(persons, (directions**2).sum(1))
  within = (np.diag(products) - own) / (counts * (counts - 1))
  between = products / np.outer(counts, counts)
  # A person is not the nearest other person of itself.
  np.fill_diagonal(between, -np.inf)
  return within - between.max(1)


def of_client(client: ClientData) -> Persons:
  """The persons of a client with `SMALLEST` images or more."""
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
  # Every second image of a person is for training.
  even = place % 2 == 0
  return Persons(client, order[even], order[~even], person[even], person[~even])


def of_clients(
  clients: Sequence[ClientData], split: client_split.ClientSplit
) -> tuple[Persons, ...]:
  """The persons of the clients of a run with `data.client_split`.

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
  every = tuple(of_client(client) for client in clients)
  few = min(every, key=lambda persons: persons.number)
  if few.number < FEWEST:
    raise errors.DataError(
      f'{few.number} persons have {SMALLEST} images or more, the audit needs '
      f'{FEWEST}',
      f'client {few.client.name}',
      'give a run with more images of each person',
    )
  return every


def half(number: int, rng: np.random.Generator) -> Bool[np.ndarray, ' P']:
  """Whether each of some persons is in a random half."""
  return rng.permutation(number) < number // 2


def check(run: LoadedRun) -> None:
  """Raises ConfigError if shadow models of a run would be uninformative."""
  config = run.config
  for wrong, what, field, fix in (
    (
      run.name != model_names.GLOBAL,
      f'{config.name} has no single model of the server',
      '--attack',
      'give a run with one global model',
    ),
    (
      config.start_from,
      'all shadow models would start from models that know every person',
      'start_from',
      'give a run without it',
    ),
    (
      config.data.poison,
      'labels of poisoned images are not those of persons',
      'data.poison',
      'give a run without it',
    ),
    (
      config.local.sampler in RANDOM and config.local.identities % 2,
      f'half of {config.local.identities} persons in a step is no whole number',
      'local.identities',
      'give a run with an even number',
    ),
    (
      config.evaluation.batch_stats != 'running',
      'the attack uses running statistics, and the evaluation of the run does '
      'not',
      'evaluation.batch_stats',
      "give a run with 'running'",
    ),
  ):
    if wrong:
      raise errors.ConfigError(what, field, fix)


def scores(
  run: LoadedRun,
  persons: Sequence[Persons],
  halves: Sequence[np.ndarray],
  folder: Path,
  seed: int,
) -> dict[str, np.ndarray]:
  """Trains a model per half, or resumes it, and returns the scores of all."""
  local = run.config.local
  # A step with half as many persons keeps the sampling rate of the run, and
  # thereby the noise of DP-SGD.
  if local.sampler in RANDOM:
    local = replace(
      local, identities=local.identities // 2, batch=local.batch // 2
    )
  config = replace(run.config, seed=seed, track=(), local=local)
  clients = tuple(
    one.members(which) for one, which in zip(persons, halves, strict=True)
  )
  members = run.federation._replace(clients=clients, targets=())

  def make(given: Config, root: bytes | None) -> Any:
    return build.assemble(given, members, root=root)

  loop.run_rounds(make, config, folder)
  shadow = loaded_run.load(config, folder, federation=members)
  return {
    case: np.concatenate([one.scores(shadow.ranked, case) for one in persons])
    for case in CASES
  }
