"""Costs of a round, from its compiled program."""

from typing import Any, NamedTuple

import jax

from fedreid_jax.core import round_log, types


class Costs(NamedTuple):
  """Costs of a round.

  Attributes:
    steps: of all clients.
    images: that are trained on, with repetition.
    sent: bytes `up` and `down` by content.
    arguments: bytes on a device of images, states and tasks of the round.
    temporary: bytes on a device while the program runs, beside its arguments
      and results; None if the compiler does not say.
    flops: floating-point operations of the program by XLA's count, which counts
      the body of every loop once: one step of one client and one batch of each
      pass over its images; None if XLA does not say.
  """

  steps: int
  images: int
  sent: round_log.Bytes
  arguments: int | None
  temporary: int | None
  flops: float | None


def of_program(
  program: jax.stages.Lowered, tasks: types.ClientTask, sent: round_log.Bytes
) -> Costs:
  """Returns the costs of a round.

  Args:
    program: of its local training.
    tasks: of its lanes, on the host.
    sent: bytes by direction and content.
  """
  memory: Any = program.compile().memory_analysis()
  counted: Any = program.cost_analysis() or {}
  return Costs(
    steps=int(tasks.num_steps.sum()),
    images=int(tasks.valid.sum()),
    sent=sent,
    arguments=getattr(memory, 'argument_size_in_bytes', None),
    temporary=getattr(memory, 'temp_size_in_bytes', None),
    flops=counted.get('flops'),
  )
