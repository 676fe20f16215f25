"""Progress of a run, warnings if it diverges, and its end if it cannot recover.

A model can be destroyed while every number is finite: the loss grows by orders
of magnitude, or the training accuracy falls back to chance. Rounds are checked
one at a time. The state between them is JSON and part of the checkpoint, so
that a resumed run has the same findings.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.config import schema
from fedreid_jax.config.configuration import Config
from fedreid_jax.core.options import Mark
from fedreid_jax.core.types import ClientData
from fedreid_jax.training.files import recorder

WARNED, FATAL = 100.0, 10_000.0  # loss over that of the first round
LEAST = 0.01  # a first loss below it counts as this, 0 with one identity
# Accuracy as a fraction of the range from chance to 100 %.
LEARNED, AT_CHANCE = 0.1, 0.02
PATIENCE = 5  # rounds at chance in a row
# Identity loss over that of guessing, in any round and in the last one. A last
# model above 1 would be worse than an untrained one, but the loss of a round is
# a mean over its steps, of which the first ones may overshoot in a good run.
DESTROYED, WORSE = 10.0, 2.0
MAX_BAD_ROUNDS = 3  # in a row
# Of a cohort, in a bad round: with one faulty client of a hundred, most rounds
# of a large cohort lose an update, and the model does not diverge.
BAD_SHARE = 0.1


class Course(NamedTuple):
  """State of the detection after some rounds."""

  first: float | None = None  # median loss of clients in round 1
  learned: bool = False  # accuracy was well above chance
  at_chance: int = 0  # last rounds in a row at chance since
  warned: bool = False  # whether a finding was reported


class Guess(NamedTuple):
  """The identity loss of a round, and the loss of guessing."""

  loss: float  # mean over all steps of the round
  chance: float  # of equal probabilities, mean over images

  def worse(self, times: float) -> str:
    """Returns the finding if the loss is above `times` that of guessing."""
    if not self.loss > times * max(self.chance, LEAST):
      return ''
    return (
      f'the identity loss is {self.loss:.4g}, and guessing has '
      f'{self.chance:.3g}'
    )


class Finding(NamedTuple):
  """A sign of divergence, and whether the run should end."""

  what: str
  fatal: bool


def follow(
  course: Course,
  loss: float,
  median: float,
  accuracy: float,
  chance: float,
  guess: Guess | None = None,
) -> tuple[Course, Finding | None]:
  """Checks one round; after a finding, only a fatal one is returned.

  Accuracy and chance are in percent, `median` is over the clients' mean losses,
  and `guess` is None if identities are not trained.
  """
  first = max(median, LEAST) if course.first is None else course.first
  share = (accuracy - chance) / max(100.0 - chance, 1e-9)
  learned = course.learned or share >= LEARNED
  at_chance = course.at_chance + 1 if learned and share < AT_CHANCE else 0
  # The first round may be destroyed already, so that losses are also compared
  # with a number that is known before training: the cross-entropy of guessing,
  # log C for C identities, which an untrained classifier has.
  what = (guess and guess.worse(DESTROYED)) or None
  if loss > WARNED * first:
    what = (
      f'the loss is {loss:.4g}, {loss / first:.0f} times that of the first '
      f'round ({first:.4g})'
    )
  elif at_chance >= PATIENCE:
    what = (
      f'training accuracy is at chance ({accuracy:.3g} %) for {at_chance} '
      'rounds, after the model had learned'
    )
  fatal = loss > FATAL * first
  now = Course(first, learned, at_chance, course.warned or what is not None)
  if what is None or (course.warned and not fatal):
    return now, None
  return now, Finding(what, fatal)


def to_lower(config: Config) -> str:
  """Returns the fix, which names the fields of the method that can be lower."""
  return f'lower {", ".join(schema.in_use(config, Mark.STRENGTH))}'


@dataclasses.dataclass
class Progress:
  """State of a run on the host."""

  done: int = 0  # rounds
  evaluation: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  bytes: dict[str, Counter[str]] = dataclasses.field(
    default_factory=lambda: {'up': Counter(), 'down': Counter()}
  )
  images: int = 0  # images trained on
  bad_rounds: int = 0  # in a row, that lost a share of their updates
  course: Course = Course()
  warnings: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  def count(self, log: dict[str, Any]) -> None:
    """Adds the bytes of a round's messages."""
    for way, sent in self.bytes.items():
      sent.update(log[way])

  def to_host(self, seconds: dict[str, float]) -> dict[str, Any]:
    """Returns the entries of a checkpoint, with the seconds of each phase."""
    entries = {k: v for k, v in vars(self).items() if k != 'done'}
    return entries | {'seconds': seconds, 'course': self.course._asdict()}

  def load(self, step: int, host: dict[str, Any]) -> None:
    """Continues from the entries of the checkpoint of a step."""
    self.done = step
    self.evaluation = host['evaluation']
    self.bytes = {way: Counter(sent) for way, sent in host['bytes'].items()}
    self.images, self.bad_rounds = host['images'], host['bad_rounds']
    self.course = Course(**host['course'])
    self.warnings = host['warnings']


class Monitor:
  """Checks the rounds of a run, and stores its findings in the progress."""

  def __init__(
    self,
    config: Config,
    record: recorder.Recorder,
    clients: Sequence[ClientData],
    progress: Progress,
  ):
    self._config, self._record = config, record
    self._clients, self._progress = clients, progress

  def check_weights(self, fell_back: bool, stayed: bool) -> None:
    """Reports a round whose aggregation weights could not be used."""
    for true, what in (
      (
        fell_back,
        'weights are zero or not finite, weights by size are used instead',
      ),
      (
        stayed,
        'weights are zero, not finite or beyond their bound, the model stays',
      ),
    ):
      if true:
        self._record.say(f'round {self._progress.done}: {what}')

  def warn_once(self, warnings: Iterable[str]) -> None:
    """Reports warnings of components, each once per run."""
    for what in warnings:
      if what not in [w['warning'] for w in self._progress.warnings]:
        self._warn(what)

  def check_updates(
    self, lost: list[str], far: Sequence[str], cohort: int
  ) -> None:
    """Reports updates that are not finite, or too `far` for the sums.

    Raises:
      DivergedError: after `MAX_BAD_ROUNDS` rounds in a row in which at least
        `BAD_SHARE` of the cohort was lost.
    """
    state = self._progress
    bad = lost and len(lost) >= BAD_SHARE * cohort
    state.bad_rounds = state.bad_rounds + 1 if bad else 0
    broken = [name for name in lost if name not in far]
    kinds = {'not finite': broken, 'out of range': far}
    kinds = {what: ', '.join(names) for what, names in kinds.items() if names}
    for what, names in kinds.items():
      self._record.say(
        f'round {state.done}: the update of {names} is {what}; '
        'left out, weights renormalised'
      )
    if state.bad_rounds >= MAX_BAD_ROUNDS:
      both = ' or '.join(f'{what} ({names})' for what, names in kinds.items())
      raise errors.DivergedError(
        f'{state.bad_rounds} rounds in a row with an update that is {both}',
        f'round {state.done}',
        to_lower(self._config),
      )

  def check_loss(
    self, log: dict[str, Any], results: Callable[[], dict[str, Any]]
  ) -> None:
    """Warns once of a diverging model.

    Raises:
      DivergedError: for a loss far above the first one; `results()` are written
        before, without this round.
    """
    metrics, state = log['metrics'], self._progress
    if 'loss' not in metrics:  # no client has a valid upload
      return
    here = [self._clients[k] for k in log['clients'][log['valid']]]
    # Clients without labels have no loss before they have clusters, and the
    # first loss is the measure of the later ones.
    if not log['median_loss'] and not all(c.labelled for c in here):
      return
    # Figures of classifiers are of the clients with labels.
    here = [c for c in here if c.labelled]
    images = max(sum(c.num_images for c in here), 1)
    guess = None
    if self._config.loss.identity and 'identity' in metrics:
      entropy = sum(c.num_images * math.log(c.num_identities) for c in here)
      guess = Guess(metrics['identity'], entropy / images)
    guessed = sum(c.num_images / c.num_identities for c in here)
    chance = 100.0 * guessed / images
    state.course, found = follow(
      state.course,
      metrics['loss'],
      log['median_loss'],
      metrics.get('accuracy', chance),  # none without labels
      chance,
      guess,
    )
    if guess and state.done == self._config.rounds:
      if worse := guess.worse(WORSE):
        found = found or Finding(
          f'the last round is worse than an untrained model: {worse}', False
        )
    if found is None:
      return
    fix = self._warn(found.what, shown=not found.fatal)
    if found.fatal:
      # The round does not count: a resumed run repeats it.
      self._record.results(results() | {'rounds': state.done - 1})
      raise errors.DivergedError(found.what, f'round {state.done}', fix)

  def _warn(self, what: str, shown: bool = True) -> str:
    """Records a warning, prints it if `shown`, and returns the fix."""
    done = self._progress.done
    fix = to_lower(self._config)
    warning = {'warning': what, 'fix': fix}
    self._record.event(done, 'warning', warning)
    self._progress.warnings.append({'round': done, **warning})
    if shown:
      self._record.say(f'warning: {what} — round {done} — {fix}')
    return fix
