"""Audit of a run that some clients or persons have left.

Three models are compared: that of the run, the one that is to have forgotten,
and that of a run that never had the departed. The persons who are asked for are
the departed, and as non-members persons of the same domains whom no run had.

Membership: c(i) is the compactness of the features of person i
(`shadow.compactness`), measured among the departed and the others together. The
score in a model subtracts what the person has in runs without the departed that
differ in their seeds, as in the attack with one-sided references of Carlini et
al. (S&P 2022, section 6):

  s_i = c_model(i) - mean_r c_reference r(i).

Tracing: the score of `trace` in the mean that the client of the person sent.

The AUC is the probability that a departed person scores above one of the
others. With a single departed person it is the share of the others below, whose
interval is of the others only: `chance` is the probability of so high a rank
for a person who was never there.

Controls: the departed must be found in the model of the run (positive), and
must not be in the run that never had them (negative). What the judged model has
more than that run is the difference of the areas, with a bootstrap over
persons.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, shadow, trace
from fedreid_jax.config import validation as checks
from fedreid_jax.core.types import ClientData
from fedreid_jax.data import client_split, departures, validation
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.training import loaded_run
from fedreid_jax.training.forgetting import Left
from fedreid_jax.training.loaded_run import LoadedRun

RUN, JUDGED, NEVER = 'the run', 'judged', 'never had them'
MEMBERSHIP, TRACING = 'membership', 'tracing'
FEWEST = 8  # persons whom no run had
IMAGES = 2  # of a person, whose features are compared with each other
DRAWS = 1000  # of the bootstrap
CERTAIN = 0.05  # largest chance of a rank that is a finding


class Group(NamedTuple):
  """The persons of a domain who are asked for."""

  domain: str
  images: np.ndarray  # uint8 [M, H, W, ch]
  persons: Int[np.ndarray, ' M']  # from 0; those of the departed come first
  modalities: Int[np.ndarray, ' M']
  departed: int  # number of them
  client: str  # '' if the client left as a whole


class Found(NamedTuple):
  """Success against one model.

  Attributes:
    auc: area under the ROC curve, or the share of the others below.
    interval: 95 % interval of it.
    chance: with one departed person, the probability of such a rank.
  """

  auc: float
  interval: tuple[float, float]
  chance: float | None = None


class Judged(NamedTuple):
  """Result of one attack.

  Attributes:
    found: success by model, `RUN`, `JUDGED` and `NEVER`.
    more: area of the judged model minus that of the run without them.
    interval: 95 % interval of it; None with one departed person.
    departed: number of persons.
    others: number of persons whom no run had.
    failed: controls that failed.
  """

  found: dict[str, Found]
  more: float
  interval: tuple[float, float] | None
  departed: int
  others: int
  failed: tuple[str, ...]


class Models(NamedTuple):
  """The models that are compared, and references for membership."""

  run: LoadedRun
  judged: LoadedRun
  never: LoadedRun
  references: Sequence[LoadedRun]

  def named(self) -> dict[str, LoadedRun]:
    """The three models by name."""
    return {RUN: self.run, JUDGED: self.judged, NEVER: self.never}


# Scores by model.
Departed = dict[str, Float[np.ndarray, ' P']]
Others = dict[str, Float[np.ndarray, ' Q']]
Sides = tuple[Departed, Others]


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
  gone = departures.removed(domains, left.new)
  found = [_group(left, _trained(left, one), one.name) for one in gone]
  found += [
    _group(left, _of_client(client), '')
    for client in left.federation.clients
    if client.name in left.new
  ]
  return tuple(found)


def _trained(left: Left, gone: Images) -> Images:
  """The departed of a domain without those whom the run held out."""
  held = _tests(left.federation).get(f'{validation.NAME}{gone.name}')
  if held is None:
    return gone
  return gone.take(np.flatnonzero(~np.isin(gone.identities, held.people)))


def _of_client(client: ClientData) -> Images:
  labels = client.labels if client.labelled else client.identities
  return Images(
    client.name,
    client.images,
    np.asarray(labels),
    client.cameras,
    client.modalities,
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
  held = f'{validation.NAME}{domain}'
  for name in (domain, held):
    if name not in tests[0] or name not in tests[1]:
      continue
    found = tests[0][name]
    # Without the departed, other persons may have been held out.
    both = np.intersect1d(found.people, tests[1][name].people)
    found = found.take(np.flatnonzero(np.isin(found.identities, both)))
    if len(np.unique(_numbered(found)[1])) >= FEWEST:
      return found
  raise errors.ConfigError(
    f'fewer than {FEWEST} persons of the domain {domain} are in no run',
    'data.targets',
    'give --set=data.targets=... with the domains of the departed and '
    '--set=data.allow_overlap=True, or train with evaluation.validation',
  )


def membership(asked: Sequence[Group], models: Models, seed: int = 0) -> Judged:
  """Whether the features of the departed show that a model knew them."""
  if models.run.name != 'global':
    raise errors.ConfigError(
      f'{models.run.config.name} has no single model of the server',
      '--judge',
      'give a run with one global model',
    )
  if models.run.config.evaluation.batch_stats != 'running':
    raise errors.ConfigError(
      'the attack uses running statistics, and the evaluation of the run does '
      'not',
      'evaluation.batch_stats',
      "give a run with 'running'",
    )

  def scores(model: LoadedRun, group: Group) -> np.ndarray:
    vectors = model.ranked(group.images, group.modalities)
    return shadow.compactness(vectors, group.persons)

  def relative(model: LoadedRun, group: Group) -> np.ndarray:
    return scores(model, group) - usual[group.domain]

  usual = {
    group.domain: np.mean([scores(one, group) for one in models.references], 0)
    for group in asked
  }
  return judged(_sides(asked, models, relative), seed)


def tracing(asked: Sequence[Group], models: Models, seed: int = 0) -> Judged:
  """Whether the departed show in the means that their clients sent.

  Raises:
    ConfigError: for runs without means, or for clients that left as a whole.
  """
  for model in models.named().values():
    if loaded_run.statistics_sent(model) is None:
      raise errors.ConfigError(
        'no statistics of DFH of the clients', model.config.name, 'none is sent'
      )
  own = [group for group in asked if group.client]
  if not own:
    raise errors.ConfigError(
      'a client that left sends no mean in which its persons could be traced',
      '--client',
      'tracing needs --identity',
    )

  def scores(model: LoadedRun, group: Group) -> np.ndarray:
    names = [client.name for client in model.federation.clients]
    if group.client not in names:
      raise errors.ConfigError(
        f'{group.client} is no client as a whole',
        'data.client_split',
        'tracing needs a client for each domain',
      )
    means = np.asarray(loaded_run.statistics_sent(model))[:, 0]
    mean = means[names.index(group.client)]
    space = loaded_run.statistics_of(model).space
    vectors = model.features(group.images, space, group.modalities)
    persons = np.asarray(
      [
        vectors[group.persons == person].mean(0)
        for person in range(group.persons.max() + 1)
      ]
    )
    # The reference of the attacker is of other persons than those asked for.
    known = persons[group.departed :: 2]
    rest = persons[group.departed + 1 :: 2]
    rows = np.concatenate([persons[: group.departed], rest])
    return trace.scores(rows, mean, known)

  return judged(_sides(own, models, scores), seed)


def _sides(
  asked: Sequence[Group],
  models: Models,
  scores: Callable[[LoadedRun, Group], np.ndarray],
) -> Sides:
  inside: Departed = {}
  outside: Others = {}
  for name, model in models.named().items():
    found = [scores(model, group) for group in asked]
    cut = [group.departed for group in asked]
    pairs = list(zip(found, cut, strict=True))
    inside[name] = np.concatenate([rows[:first] for rows, first in pairs])
    outside[name] = np.concatenate([rows[first:] for rows, first in pairs])
  return inside, outside


def judged(sides: Sides, seed: int = 0) -> Judged:
  """Compares the scores in the three models, and checks the controls."""
  inside, outside = sides
  found = {name: success(inside[name], outside[name]) for name in inside}
  failed: list[str] = []
  if not _is_found(inside[RUN], outside[RUN]):
    failed.append(
      f'the departed are not found in the run itself (AUC '
      f'{found[RUN].auc:.3f}): the attack is too weak to judge'
    )
  if not _at_chance(inside[NEVER], outside[NEVER]):
    failed.append(
      f'they are found in the run that never had them (AUC '
      f'{found[NEVER].auc:.3f})'
    )
  return Judged(
    found,
    found[JUDGED].auc - found[NEVER].auc,
    _difference(sides, seed),
    len(inside[RUN]),
    len(outside[RUN]),
    tuple(failed),
  )


def success(
  inside: Float[np.ndarray, ' P'], outside: Float[np.ndarray, ' Q']
) -> Found:
  """How far the departed score above the others."""
  area = detection.auc(inside, outside)
  if len(inside) > 1:
    interval = detection.auc_interval(inside, outside, detection.LEVEL)
    return Found(area, interval)
  number = len(outside)
  above = int((outside >= inside[0]).sum())
  interval = detection.proportion(number - above, number)
  return Found(area, interval, (1 + above) / (1 + number))


def _is_found(inside: np.ndarray, outside: np.ndarray) -> bool:
  if len(inside) > 1:
    low, _ = detection.auc_interval(inside, outside, detection.LEVEL)
    return low > detection.CHANCE
  return (success(inside, outside).chance or 1.0) <= CERTAIN


def _at_chance(inside: np.ndarray, outside: np.ndarray) -> bool:
  if len(inside) > 1:
    return detection.at_chance(inside, outside)
  # The rank of one person who was never there is uniform: only a very high one
  # is a failure.
  return (success(inside, outside).chance or 1.0) > 1 - detection.CONTROL


def _difference(sides: Sides, seed: int) -> tuple[float, float] | None:
  """Bootstrap over persons, who keep their scores in both models."""
  inside, outside = sides
  first, second = len(inside[RUN]), len(outside[RUN])
  if first < 2:
    return None
  rng = np.random.default_rng(seed)
  found = []
  for _ in range(DRAWS):
    rows, cols = (
      rng.integers(first, size=first),
      rng.integers(second, size=second),
    )
    areas = [
      detection.auc(inside[name][rows], outside[name][cols])
      for name in (JUDGED, NEVER)
    ]
    found.append(areas[0] - areas[1])
  share = 50 * (1 - detection.LEVEL)
  low, high = np.percentile(found, (share, 100 - share))
  return float(low), float(high)


def lines(attack: str, one: Judged) -> list[str]:
  """The rows of a table for users."""
  rows = [
    f'{attack}: {errors.counted(one.departed, "departed person")}, '
    f'{one.others} whom no run had'
  ]
  for name, found in one.found.items():
    low, high = found.interval
    text = f'  {name:<16} AUC {found.auc:.3f} [{low:.3f}, {high:.3f}]'
    if found.chance is not None:
      text += f', by chance {found.chance:.3f}'
    rows.append(text)
  between = f'  {"difference":<16}     {one.more:+.3f}'
  if one.interval:
    low, high = one.interval
    between += f' [{low:+.3f}, {high:+.3f}]'
  return [*rows, f'{between} (judged minus never had them)']
