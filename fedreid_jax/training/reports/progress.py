"""Counters, evaluations and warnings of a run, saved with every checkpoint."""

import dataclasses
from collections import Counter
from typing import Any

from fedreid_jax.training.reports import divergence


@dataclasses.dataclass
class Progress:
  """State of a run on the host.

  Attributes:
    done: rounds done.
    evaluation: entries of all evaluations.
    bytes: bytes of each kind of message by direction, 'up' and 'down'.
    images: images trained on.
    bad_rounds: rounds in a row that lost a share of their updates.
    course: state of the detection of divergence.
    warnings: of all rounds.
  """

  done: int = 0
  evaluation: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  bytes: dict[str, Counter[str]] = dataclasses.field(
    default_factory=lambda: {'up': Counter(), 'down': Counter()}
  )
  images: int = 0
  bad_rounds: int = 0
  course: divergence.Course = divergence.Course()
  warnings: list[dict[str, Any]] = dataclasses.field(default_factory=list)

  def count(self, log: dict[str, Any]) -> None:
    """Adds the bytes of a round's messages."""
    for way, sent in self.bytes.items():
      sent.update(log[way])

  def to_host(self, seconds: dict[str, float]) -> dict[str, Any]:
    """Returns the entries of a checkpoint, with the seconds of each phase."""
    return {
      'evaluation': self.evaluation,
      'bytes': self.bytes,
      'images': self.images,
      'bad_rounds': self.bad_rounds,
      'seconds': seconds,
      'course': self.course._asdict(),
      'warnings': self.warnings,
    }

  def load(self, step: int, host: dict[str, Any]) -> None:
    """Continues from the entries of the checkpoint of a step."""
    self.done = step
    self.evaluation = host['evaluation']
    self.bytes = {way: Counter(sent) for way, sent in host['bytes'].items()}
    self.images, self.bad_rounds = host['images'], host['bad_rounds']
    self.course = divergence.Course(**host['course'])
    self.warnings = host['warnings']
