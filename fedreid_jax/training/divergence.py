"""Detection of divergence while every number is still finite.

A model can be destroyed without a nan: the loss grows by orders of magnitude,
or the training accuracy falls back to chance. Rounds are checked one at a time;
the state between them is JSON and part of the checkpoint, so that a resumed run
has the same findings.
"""

from typing import Any, NamedTuple

WARNED, FATAL = 100.0, 10_000.0  # loss over that of the first round
LEAST = 0.01  # a first loss below it counts as this, 0 with one identity
# Accuracy as a fraction of the range from chance to 100 %.
LEARNED, AT_CHANCE = 0.1, 0.02
PATIENCE = 5  # rounds at chance in a row

# Fields that strengthen the update, beside the learning rate of the clients.
# Fields of a component count if it is in use, and all only if above 0.
STRENGTHS = (
  *('dfh.lam', 'moon.mu', 'fedprox.mu', 'fednova.mu', 'dppt.lam', 'lba.lam'),
  *('dns.alignment', 'dns.distillation', 'deen.lam_cpm', 'deen.lam_ort'),
  *('fedopt.lr', 'fedatt.epsilon', 'kd.lr', 'noise.beta'),
  *('loss.triplet', 'loss.circle', 'loss.weighted_triplet'),
)


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


class Finding(NamedTuple):
  """A sign of divergence, and whether the run should end."""

  what: str
  fatal: bool


def follow(
  course: Course, loss: float, median: float, accuracy: float, chance: float
) -> tuple[Course, Finding | None]:
  """Checks one round.

  Args:
    course: of the rounds before.
    loss: mean over all steps of the round.
    median: over clients, of their mean loss.
    accuracy: mean training accuracy, percent.
    chance: accuracy of guessing, percent.

  Returns:
    (course with this round, finding); only a fatal finding is returned after
    an earlier one.
  """
  first = max(median, LEAST) if course.first is None else course.first
  share = (accuracy - chance) / max(100.0 - chance, 1e-9)
  learned = course.learned or share >= LEARNED
  at_chance = course.at_chance + 1 if learned and share < AT_CHANCE else 0
  what = None
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
  """Returns the fix: the fields to lower."""
  used = {*config.components, 'loss'}
  fields = ['optim.lr']
  for name in STRENGTHS:
    section, field = name.split('.')
    if section in used and config[section][field] > 0:
      fields.append(name)
  return f'lower {", ".join(fields)}'
