"""Success of an attack: retrieval with reconstructed images as queries.

The model that ranks images, the judge, should differ from the attacked model,
which accepts any images with the right features. A judge that was trained from
the same initial weights has similar features, so that its answers are too
favourable to the attack.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedreid_jax.apps.audit.inversion.attacks import Attempt
from fedreid_jax.apps.audit.inversion.inversion_control import Asked
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun


class Answers(NamedTuple):
  """Answers to the question which person or domain the queries show.

  Attributes:
    asked: right answers and answers of the nearest real image, for the attempts
      by their names, for the initial 'noise', and for 'real' images (one of
      each intended person who has two; absent without such a person).
    chance: percent of real images with the right answer, the mean over queries.
    nearest: rows of the real images, in order of the distance to each
      reconstructed one, by attempt. Rows count the images of all clients.
  """

  asked: dict[str, Asked]
  chance: float
  nearest: dict[str, Int[np.ndarray, 'B M']]

  def rank1(self) -> dict[str, float]:
    """Returns the percent of right answers by query, and by 'chance'."""
    shares = {name: one.rank1() for name, one in self.asked.items()}
    return shares | {'chance': self.chance}


class Gallery(NamedTuple):
  """Real images.

  Attributes:
    rows: among the images of all clients.
    features: features by the judge.
    answers: number of the person or of the domain of each.
  """

  rows: Int[np.ndarray, ' M']
  features: Float[np.ndarray, 'M D']
  answers: Int[np.ndarray, ' M']

  def take(self, which: np.ndarray) -> 'Gallery':
    """Returns some of the images."""
    return Gallery(*(part[which] for part in self))


def judge(
  attempts: Mapping[str, Attempt], run: LoadedRun, by: LoadedRun
) -> dict[str, Answers]:
  """Measures retrieval with reconstructed images as queries.

  Args:
    attempts: by their names; those that intend identities intend the same.
    run: the attacked run, whose clients' images are searched.
    by: run with the judging model.

  Returns:
    'person': answers of the attempts that intend identities, among the images
    of the attacked clients. With several clients also 'domain': answers of all
    attempts, among the images of all clients.

  Raises:
    ConfigError: when the judge has images of another size.
    DataError: when the features of the judge are not numbers.
  """
  loaded_run.same_images(run, by, '--judge')
  clients = run.federation.clients
  features = [by.ranked(c.images(), c.modalities) for c in clients]
  domains = np.repeat(np.arange(len(clients)), [len(f) for f in features])
  # Labels count the persons of one client; offsets make them unique.
  first = np.cumsum([0, *(c.num_identities for c in clients)])
  persons = np.concatenate([c.labels for c in clients]) + first[domains]
  everything = Gallery(
    np.arange(len(domains)), np.concatenate(features), persons
  )
  intended = {
    name: first[a.clients] + a.labels
    for name, a in attempts.items()
    if a.labels is not None
  }
  who = next(iter(intended.values()))
  real = _one_of_each(persons, who)
  attacked = np.isin(domains, domains[np.isin(persons, who)])
  found = {
    'person': _ask(by, attempts, intended, everything.take(attacked), real)
  }
  if len(clients) > 1:
    wanted = {name: a.clients for name, a in attempts.items()}
    gallery = everything._replace(answers=domains)
    found['domain'] = _ask(by, attempts, wanted, gallery, real)
  return found


def same_model(one: LoadedRun, other: LoadedRun) -> bool:
  """Returns whether two runs have equal models."""
  a, b = one.variables, other.variables
  return a.keys() == b.keys() and all(
    np.array_equal(a[name], b[name]) for name in a
  )


def same_initial_weights(one: LoadedRun, other: LoadedRun) -> bool:
  """Returns whether two runs started from the same weights."""
  a, b = (
    c.start_from or c.model.pretrained or (c.model.name, c.seed)
    for c in (one.config, other.config)
  )
  return a == b


def _one_of_each(persons: np.ndarray, wanted: np.ndarray) -> np.ndarray:
  """Returns the first image of each wanted person who has two or more."""
  own = [np.flatnonzero(persons == person) for person in wanted]
  return np.asarray([rows[0] for rows in own if len(rows) > 1], int)


def _ask(
  by: LoadedRun,
  attempts: Mapping[str, Attempt],
  wanted: Mapping[str, np.ndarray],
  gallery: Gallery,
  real: np.ndarray,
) -> Answers:
  """Answers one question.

  Args:
    by: run with the judging model.
    attempts: by their names.
    wanted: right answers of the attempts that are asked.
    gallery: real images.
    real: rows of the real images that are queries, too, for the others.
  """
  asked, nearest = {}, {}
  for name, right in wanted.items():
    queries = by.ranked(attempts[name].images.photos)
    distance = by.distances(queries, gallery.features)
    order = np.argsort(distance, axis=1, kind='stable')
    nearest[name] = gallery.rows[order]
    asked[name] = Asked(right, gallery.answers[order[:, 0]])
  # The noise has the right answers of the last attempt. With DFS this is the
  # attempt with the features of real images.
  name, right = list(wanted.items())[-1]
  noise = by.ranked(attempts[name].images.noise)
  noise = by.distances(noise, gallery.features)
  asked['noise'] = Asked(right, gallery.answers[noise.argmin(axis=1)])
  if len(real):
    own = np.isin(gallery.rows, real)
    queries, others = gallery.take(own), gallery.take(~own)
    # An image would retrieve itself, so the queries leave the gallery.
    distance = by.distances(queries.features, others.features)
    asked['real'] = Asked(
      queries.answers, others.answers[distance.argmin(axis=1)]
    )
  shares = [np.mean(gallery.answers == one) for one in right]
  return Answers(asked, 100.0 * float(np.mean(shares)), nearest)
