"""Audit of a run that some clients or persons have left.

Three models are compared: that of the run, the one that is to have forgotten,
and that of a run that never had the departed. `departed` has the persons who
are asked for.

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

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedreid_jax import errors
from fedreid_jax.apps.audit import detection, shadow, trace
from fedreid_jax.apps.audit.departed import Group
from fedreid_jax.core import model_names
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun

RUN, JUDGED, NEVER = 'the run', 'judged', 'never had them'
MEMBERSHIP, TRACING = 'membership', 'tracing'
DRAWS = 1000  # of the bootstrap
CERTAIN = 0.05  # largest chance of a rank that is a finding


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


def check(asked: Sequence[Group], run: LoadedRun) -> None:
  """Refuses a run that neither attack can judge.

  Raises:
    ConfigError: which says why membership cannot.
  """
  try:
    _check_membership(run)
  except errors.ConfigError:
    with contextlib.suppress(errors.ConfigError):
      _check_tracing(asked, run)
      return
    raise


def _check_membership(run: LoadedRun) -> None:
  if run.name != model_names.GLOBAL:
    raise errors.ConfigError(
      f'{run.config.name} has no single model of the server',
      '--judge',
      'give a run with one global model',
    )
  if run.config.evaluation.batch_stats != 'running':
    raise errors.ConfigError(
      'the attack uses running statistics, and the evaluation of the run does '
      'not',
      'evaluation.batch_stats',
      "give a run with 'running'",
    )


def _check_tracing(asked: Sequence[Group], run: LoadedRun) -> None:
  if loaded_run.statistics_sent(run) is None:
    raise errors.ConfigError(
      'no statistics of DFH of the clients', run.config.name, 'none is sent'
    )
  if not any(group.client for group in asked):
    raise errors.ConfigError(
      'a client that left sends no mean in which its persons could be traced',
      '--client',
      'tracing needs --identity',
    )


def membership(asked: Sequence[Group], models: Models, seed: int = 0) -> Judged:
  """Whether the features of the departed show that a model knew them.

  Raises:
    ConfigError: without one model of the server, or running statistics.
  """
  _check_membership(models.run)

  def scores(model: LoadedRun, group: Group) -> np.ndarray:
    vectors = model.ranked(group.images, group.modalities)
    return shadow.compactness(vectors, group.persons)

  def relative(model: LoadedRun, group: Group) -> np.ndarray:
    return scores(model, group) - usual[group.domain, group.client]

  usual = {
    (group.domain, group.client): np.mean(
      [scores(one, group) for one in models.references], 0
    )
    for group in asked
  }
  return judged(_sides(asked, models, relative), seed)


def tracing(asked: Sequence[Group], models: Models, seed: int = 0) -> Judged:
  """Whether the departed show in the means that their clients sent.

  Raises:
    ConfigError: for runs without means, or for clients that left as a whole.
  """
  for model in models.named().values():
    _check_tracing(asked, model)
  own = [group for group in asked if group.client]

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
