"""Detection of divergence while every number is still finite.

A model can be destroyed without a nan: the loss grows by orders of magnitude,
or the training accuracy falls back to chance. Rounds are checked one at a time.
The state between them is JSON and part of the checkpoint, so that a resumed run
has the same findings.
"""

from typing import Any, NamedTuple

from fedreid_jax.config import schema
from fedreid_jax.core.options import Mark

WARNED, FATAL = 100.0, 10_000.0  # loss over that of the first round
LEAST = 0.01  # a first loss below it counts as this, 0 with one identity
# Accuracy as a fraction of the range from chance to 100 %.
LEARNED, AT_CHANCE = 0.1, 0.02
PATIENCE = 5  # rounds at chance in a row
# Identity loss over that of guessing, in any round and in the last one. A last
# model above 1 would be worse than an untrained one, but the loss of a round is
# a mean over its steps, of which the first ones may overshoot in a good run.
DESTROYED, WORSE = 10.0, 2.0


class Course(NamedTuple):
  """State of the detection after some rounds.

  Attributes:
    first: median over clients of their mean loss in the first round, None
      before that round.
    learned: whether accuracy has ever been well above chance.
    at_chance: rounds in a row, up to the last, with accuracy at chance since.
    warned: whether a finding was reported.
  """

  first: float | None = None
  learned: bool = False
  at_chance: int = 0
  warned: bool = False


class Guess(NamedTuple):
  """The identity loss of a round, and the loss of guessing.

  Attributes:
    loss: mean cross-entropy of the identities over all steps of the round.
    chance: cross-entropy of equal probabilities, the mean over images.
  """

  loss: float
  chance: float

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
  """Checks one round.

  Args:
    course: of the rounds before.
    loss: mean over all steps of the round.
    median: over clients, of their mean loss.
    accuracy: mean training accuracy, percent.
    chance: accuracy of guessing, percent.
    guess: identity loss of the round, None if it is not trained.

  Returns:
    (course with this round, finding); only a fatal finding is returned after
    an earlier one.
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


def to_lower(config: Any) -> str:
  """Returns the fix, which names the fields of the method that can be lower."""
  return f'lower {", ".join(schema.in_use(config, Mark.STRENGTH))}'
