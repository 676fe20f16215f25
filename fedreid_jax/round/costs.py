"""Costs of a round: steps, bytes, memory and operations of its programs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fedreid_jax.core import types
from fedreid_jax.round import round_log
from fedreid_jax.round.round_programs import TRAINING, Programs


class Memory(NamedTuple):
  """Bytes on a device that a program needs while it runs.

  Attributes:
    arguments: bytes of the arrays that the program receives.
    results: bytes of the arrays that it returns, except those that reuse the
      memory of arguments.
    temporary: bytes of all other arrays.
  """

  arguments: int
  results: int
  temporary: int


class Costs(NamedTuple):
  """Costs of a round.

  Attributes:
    steps: number of local steps of all clients.
    images: number of images in these steps, with repetition.
    sent: bytes `up` and `down` by content.
    memory: memory of each program of the round by its name; empty if the
      compiler does not report it. Arrays that a program does not use are not
      counted, such as resident images during the aggregation.
    flops: floating-point operations of one step of one client, None if XLA does
      not report them.
  """

  steps: int
  images: int
  sent: round_log.Bytes
  memory: dict[str, Memory]
  flops: float | None

  @property
  def largest(self) -> str | None:
    """Name of the program that needs the most memory, None if unknown."""
    return max(
      self.memory, key=lambda name: sum(self.memory[name]), default=None
    )


def of_programs(
  programs: Programs,
  waves: Sequence[types.ClientTask],
  sent: round_log.Bytes,
) -> Costs:
  """Returns the costs of a round.

  Args:
    programs: programs of the round.
    waves: tasks of all lanes of each wave, on the host.
    sent: bytes by direction and content.
  """
  # XLA counts the body of every loop once, so that this is the cost of one step
  # of one client.
  counted: Any = programs.lowered[TRAINING].cost_analysis() or {}
  memory = {name: _memory(one) for name, one in programs.compiled.items()}
  return Costs(
    steps=sum(int(tasks.num_steps.sum()) for tasks in waves),
    images=sum(int(tasks.valid.sum()) for tasks in waves),
    sent=sent,
    memory={name: found for name, found in memory.items() if found},
    flops=counted.get('flops'),
  )


def _memory(program: jax.stages.Compiled) -> Memory | None:
  found: Any = program.memory_analysis()
  if found is None:  # some platforms have no analysis
    return None
  return Memory(
    found.argument_size_in_bytes,
    found.output_size_in_bytes - found.alias_size_in_bytes,
    found.temp_size_in_bytes,
  )
