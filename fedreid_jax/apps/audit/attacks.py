"""Attacks on statistics of features of DFH, and the success of each.

`identities` is figure 5 of DFH: the attacker has the mean feature of every
identity (IFS), which the method does not send. In the positive control the
attacker has the features of one image of each identity.

`statistics` attacks the statistics that the method does send, the rows m, v, p
and q of a client (DFS, `algorithms.dfh`). The paper states that these "should
be first sampled": as in the training, the attacker samples M ~ N(m, v) and
V ~ N(p, q), then a feature M + sqrt(V) e, and reconstructs an image with this
feature. Two controls have the same objective. The negative control has the
values of all sampled features in random order, and the positive control has
the features of real images. The paper argues that DFS reveal less than IFS and
does not attack them.

Success is retrieval with the reconstructed images as queries. The model that
ranks images, the judge, names the person or the domain that each query shows.
It should differ from the attacked model, which accepts any images with the
right features. A judge that was trained from the same initial weights has
similar features, so that its answers are too favourable to the attack.

A permutation test decides whether the judge is right more often than by chance.
Real images and images from their features must pass this test; the initial
noise and images from permuted values must not.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, inversion
from fedreid_jax.apps.audit.inversion import Reconstructed, Search, Weights
from fedreid_jax.core.types import Array, ClientData
from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.losses.hallucination import Drawn
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun

PERMUTATIONS = 9999
POSITIVE = {'real': 0.05, 'real feature': 0.05}  # the largest p that passes
NEGATIVE = {'noise': 0.01, 'permuted DFS': 0.01}  # the smallest one
NEAREST = 2  # real images in the figure beside each reconstructed one
SHOWN = 16  # images of one attempt in the figure; half as many of several

Lines = list[list[Photo | None]]


class Attempt(NamedTuple):
  """Images reconstructed from one kind of information."""

  images: Reconstructed
  clients: Int[np.ndarray, ' B']  # number of each image's client
  # Intended identity of each image in the labels of its client, or None.
  labels: Int[np.ndarray, ' B'] | None


def identities(
  run: LoadedRun,
  client: ClientData,
  num: int,
  weights: Weights,
  search: Search,
  scale: float = inversion.SCALE,
  measured_by: LoadedRun | None = None,
) -> dict[str, Attempt]:
  """Reconstructs an image of each of a client's first `num` identities.

  The model of `measured_by`, or else of `run`, measured the mean features.

  Raises:
    ConfigError: if `measured_by` has images or features of another size.
  """
  space = loaded_run.statistics_of(run).space
  own = measured_by or run
  loaded_run.same_images(run, own, '--measured_by')
  moments = own.moments(client, loaded_run.statistics_of(own).space)
  theirs = moments.mean.shape[1]
  ours = run.features(client.images()[:1], space).shape[1]
  if theirs != ours:
    raise errors.ConfigError(
      f'the means have {theirs} features, the attacked model has {ours}',
      '--measured_by',
      'give a run with the same network',
    )
  # An identity without images has no mean.
  present = np.flatnonzero(np.asarray(moments.count))[:num]
  num = len(present)
  index = [one.name for one in run.federation.clients].index(client.name)
  _, one_each = _one_image_each(run, client, num, space)

  def attempt(goal: inversion.Goal) -> Attempt:
    images = inversion.reconstruct(run, goal, weights, search)
    return Attempt(images, np.full(num, index), present)

  means = moments.mean[present]
  goal = inversion.identities(means, np.arange(num), space, scale)
  return {
    'identity means': attempt(goal),
    'real feature': attempt(inversion.features(one_each, space)),
  }


def statistics(
  run: LoadedRun, num: int, weights: Weights, search: Search
) -> dict[str, Attempt]:
  """Reconstructs images from the DFS of all clients, and from two controls.

  There are `num` images of each client, and as many or fewer real ones, which
  are of different identities. The seed of `search` also draws features and
  permutes their values.
  """
  space, clients = loaded_run.statistics_of(run).space, run.federation.clients
  every = jnp.repeat(loaded_run.domain_statistics(run), num, axis=0)
  drawn = sampled(every, loaded_run.statistics_of(run).draw, search.seed)
  # The values of all clients are permuted together, so that samples of one
  # client are no more similar than others.
  shuffled = np.random.default_rng(search.seed).permutation(drawn.ravel())
  owners = np.arange(len(clients))
  persons, real = zip(
    *(_one_image_each(run, client, num, space) for client in clients),
    strict=True,
  )

  def attempt(wanted, owners, labels=None):
    goal = inversion.features(wanted, space)
    images = inversion.reconstruct(run, goal, weights, search)
    return Attempt(images, owners, labels)

  return {
    'DFS': attempt(drawn, np.repeat(owners, num)),
    'permuted DFS': attempt(
      shuffled.reshape(drawn.shape), np.repeat(owners, num)
    ),
    'real feature': attempt(
      np.concatenate(real),
      np.repeat(owners, [len(own) for own in persons]),
      np.concatenate(persons),
    ),
  }


def _one_image_each(
  run: LoadedRun, client: ClientData, num: int, space: str
) -> tuple[Int[np.ndarray, ' B'], Float[np.ndarray, 'B D']]:
  labels, rows = np.unique(client.labels, return_index=True)
  rows = rows[:num]
  features = run.features(client.images()[rows], space, client.modalities[rows])
  return labels[:num], features


def sampled(
  dfs: Float[Array, 'B 4 D'],
  draw: Callable[[Array, Array], Drawn],
  seed: int,
) -> Float[np.ndarray, 'B D']:
  """Samples a feature of a new identity from each of several DFS."""
  draw_key, key = jax.random.split(jax.random.key(seed))
  drawn = draw(draw_key, dfs)
  # Variances are of dimensions, as DFS have no covariances.
  noise = jax.random.normal(key, drawn.means.shape)
  return np.asarray(drawn.means + jnp.sqrt(drawn.variances) * noise)


class Asked(NamedTuple):
  """Answers of a judge to some queries."""

  wanted: Int[np.ndarray, ' B']  # right answer of each query
  found: Int[np.ndarray, ' B']  # answer of the judge

  def rank1(self) -> float:
    """The percentage of right answers."""
    return 100.0 * float(np.mean(self.wanted == self.found))

  def interval(self) -> tuple[float, float]:
    """The 95 % interval of `rank1` (Clopper-Pearson), in percent."""
    hits = int((self.wanted == self.found).sum())
    low, high = detection.proportion(hits, len(self.wanted))
    return 100.0 * low, 100.0 * high

  def p_value(self) -> float:
    """The p-value of a permutation test of the right answers."""
    rng = np.random.default_rng(0)
    hits = (self.wanted == self.found).sum()
    # Permuted right answers keep their frequencies, so that a judge with a
    # preference for some answers, or with one answer to all, gains nothing.
    as_many = sum(
      (rng.permutation(self.wanted) == self.found).sum() >= hits
      for _ in range(PERMUTATIONS)
    )
    # The identity is one of the permutations, so the p-value is never 0.
    return float((1 + as_many) / (1 + PERMUTATIONS))


class Answers(NamedTuple):
  """Answers to the question which person or domain the queries show.

  `asked` has the attempts by their names, the initial 'noise', and 'real'
  images, one of each intended person who has two (absent without such a
  person).
  """

  asked: dict[str, Asked]
  chance: float  # percent with the right answer, mean over queries
  # Rows of the real images among those of all clients, in order of the distance
  # to each reconstructed one, by attempt.
  nearest: dict[str, Int[np.ndarray, 'B M']]

  def rank1(self) -> dict[str, float]:
    """The percent of right answers by query, and by 'chance'."""
    shares = {name: one.rank1() for name, one in self.asked.items()}
    return shares | {'chance': self.chance}


class Gallery(NamedTuple):
  """Real images."""

  rows: Int[np.ndarray, ' M']  # among the images of all clients
  features: Float[np.ndarray, 'M D']  # features by the judge
  # Number of the person or of the domain of each.
  answers: Int[np.ndarray, ' M']

  def take(self, which: np.ndarray) -> 'Gallery':
    """Some of the images."""
    return Gallery(*(part[which] for part in self))


def judge(
  attempts: Mapping[str, Attempt], run: LoadedRun, by: LoadedRun
) -> dict[str, Answers]:
  """Measures retrieval with reconstructed images as queries.

  The judge is the model of `by`. Attempts that intend identities intend the
  same ones; 'person' has their answers, among the images of the attacked
  clients. With several clients, 'domain' has the answers of all attempts, among
  the images of all clients.

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
  # The first image of each intended person who has two or more.
  own = [np.flatnonzero(persons == person) for person in who]
  real = np.asarray([rows[0] for rows in own if len(rows) > 1], int)
  attacked = np.isin(domains, domains[np.isin(persons, who)])
  answers = {
    'person': _ask(by, attempts, intended, everything.take(attacked), real)
  }
  if len(clients) > 1:
    wanted = {name: a.clients for name, a in attempts.items()}
    gallery = everything._replace(answers=domains)
    answers['domain'] = _ask(by, attempts, wanted, gallery, real)
  return answers


def _ask(
  by: LoadedRun,
  attempts: Mapping[str, Attempt],
  wanted: Mapping[str, np.ndarray],
  gallery: Gallery,
  real: np.ndarray,
) -> Answers:
  """Answers a question; the gallery's rows `real` are queries, too."""
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


def same_model(one: LoadedRun, other: LoadedRun) -> bool:
  """Whether two runs have equal models."""
  a, b = one.variables, other.variables
  return a.keys() == b.keys() and all(
    np.array_equal(a[name], b[name]) for name in a
  )


def same_initial_weights(one: LoadedRun, other: LoadedRun) -> bool:
  """Whether two runs started from the same weights."""
  a, b = (
    c.start_from or c.model.pretrained or (c.model.name, c.seed)
    for c in (one.config, other.config)
  )
  return a == b


def failed(asked: Mapping[str, Mapping[str, Asked]]) -> tuple[str, ...]:
  """The controls that failed, from answers by question and query."""
  # With one right answer for all queries every permutation is as good.
  several = {
    (question, name): one
    for question, of in asked.items()
    for name, one in of.items()
    if len(np.unique(one.wanted)) > 1
  }
  # The features of real images must lead to the domain if there are several,
  # else to the person.
  if ('domain', 'real feature') in several:
    several.pop(('person', 'real feature'), None)
  broken = []
  for (question, name), one in several.items():
    if name not in POSITIVE | NEGATIVE:
      continue
    p = one.p_value()
    counts = f'{one.rank1():.1f} % of {len(one.wanted)}, p = {p:.2g}'
    if p < NEGATIVE.get(name, 0.0):
      broken.append(f'{name} leads to the {question} ({counts})')
    if p > POSITIVE.get(name, 1.0):
      broken.append(f'{name} does not lead to the {question} ({counts})')
  if all(name != 'real' for _, name in several):
    broken.append('real images of two persons cannot be asked')
  return tuple(broken)


def draw(
  attempts: Mapping[str, Attempt],
  answers: Mapping[str, Answers],
  run: LoadedRun,
  title: str,
) -> Any:
  """Draws reconstructed images of every attempt with the nearest real ones.

  Figure 5 of DFH shows reconstructed images only. A solid frame marks real
  images of the intended person, or of the domain if no person is intended.
  """
  num = SHOWN if len(attempts) == 1 else SHOWN // 2
  blocks = []
  for name, attempt in attempts.items():
    nearest = [f'nearest {k + 1}' for k in range(NEAREST)]
    titles = [name.replace(' ', '\n'), *nearest]
    question = 'domain'
    if attempt.labels is not None:
      titles.insert(1, 'real')
      question = 'person'
    lines = _lines(attempt, answers[question].nearest[name], run, num)
    blocks.append((titles, lines))
  # A single attempt has two columns of lines.
  if len(blocks) == 1:
    titles, lines = blocks[0]
    blocks = [(titles, lines[::2]), (titles, lines[1::2])]
  height = max(len(lines) for _, lines in blocks)
  rows: Lines = [[] for _ in range(height)]
  every, gaps = [], []
  for titles, lines in blocks:
    if every:
      gaps.append(len(every))
    gaps.append(len(every) + len(titles) - NEAREST)
    every += titles
    for k, row in enumerate(rows):
      row += lines[k] if k < len(lines) else [None] * len(titles)
  return canvas.sheet(rows, every, title, gaps)


def _lines(
  attempt: Attempt, nearest: np.ndarray, run: LoadedRun, num: int
) -> Lines:
  """A reconstructed image, a real one of its person, and the nearest ones."""
  clients = run.federation.clients
  images = [client.images() for client in clients]
  first = np.cumsum([0, *(client.num_images for client in clients)])
  total = len(attempt.clients)

  def line(k: int) -> list[Photo | None]:
    owner = int(attempt.clients[k])
    person = None if attempt.labels is None else int(attempt.labels[k])

    def named(domain: int, label: int | None) -> str:
      name = clients[domain].name
      return name if person is None else f'{name} {label}'

    def real(row: int) -> Photo:
      domain = int(np.searchsorted(first, row, 'right')) - 1
      own = row - first[domain]
      label = int(clients[domain].labels[own])
      right = domain == owner and person in (None, label)
      return Photo(images[domain][own], right, named(domain, label))

    caption = named(owner, person)
    photos: list[Photo | None] = [
      Photo(attempt.images.photos[k], None, caption)
    ]
    if person is not None:
      own = np.flatnonzero(clients[owner].labels == person)[0]
      photos.append(Photo(images[owner][own], None, caption))
    return photos + [real(int(row)) for row in nearest[k, :NEAREST]]

  # Evenly spaced, so that every client has lines.
  chosen = np.linspace(0, total - 1, min(num, total)).round().astype(int)
  return [line(int(k)) for k in chosen]
