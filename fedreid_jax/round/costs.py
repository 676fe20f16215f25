"""Costs of a round, from its programs, which are compiled and not run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import types
from fedreid_jax.round import placement, round_log
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.local_rounds import LocalRounds, Wave
from fedreid_jax.round.segments import PASS, STEPS
from fedreid_jax.round.server.fold import Folded

TRAINING = 'training'


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


class Programs:
  """Programs of a round, compiled for the shapes of their arguments.

  Attributes:
    lowered: lowered programs by name, in the order in which a round runs them;
      a program that runs for each wave or segment is included once.
    compiled: compiled programs by name, in the same order.
  """

  def __init__(self) -> None:
    """Starts without programs."""
    self.lowered: dict[str, jax.stages.Lowered] = {}
    self.compiled: dict[str, jax.stages.Compiled] = {}

  def add(self, name: str, program: Any, *args: Any) -> Any:
    """Compiles a program; returns the shapes and shardings of its results."""
    lowered = self.lowered[name] = program.lower(*args)
    made = self.compiled[name] = lowered.compile()
    return jax.tree.map(
      placement.described, made.out_info, made.output_shardings
    )


def of_round(
  local: LocalRounds,
  server: types.ServerState,
  store: ClientStore,
  waves: list[Wave],
  cohort: int,
  public: types.Array,
  seed: Any,
) -> Programs:
  """Compiles the programs of a round."""
  found = Programs()
  uploads = _of_clients(found, local, server, store, waves[0])
  if len(waves) > 1:
    found.add('sum of waves', local.run.add, uploads.totals, uploads.totals)
    uploads = _joined(uploads, cohort, local.whole)
    ranks = placement.put(np.zeros(cohort, np.int32), local.whole)
  else:
    ranks = placement.put(waves[0][1].drawn, local.split)
  given = server, uploads, ranks, np.int32(0), public, seed
  found.add('aggregation', local.run.aggregate, *given)
  return found


def of_programs(
  programs: Programs,
  waves: Sequence[types.ClientTask],
  sent: round_log.Bytes,
) -> Costs:
  """Returns the costs of a round.

  Args:
    waves: tasks of all lanes of each wave, on the host.
  """
  # XLA counts the body of every loop once, so that this is the cost of one step
  # of one client.
  counted: Any = programs.lowered[TRAINING].cost_analysis() or {}
  memory = {name: of_memory(one) for name, one in programs.compiled.items()}
  return Costs(
    steps=sum(int(tasks.num_steps.sum()) for tasks in waves),
    images=sum(int(tasks.valid.sum()) for tasks in waves),
    sent=sent,
    memory={name: found for name, found in memory.items() if found},
    flops=counted.get('flops'),
  )


def _of_clients(
  found: Programs,
  local: LocalRounds,
  server: types.ServerState,
  store: ClientStore,
  wave: Wave,
) -> Any:
  """Adds the programs of `LocalRounds.wave`; returns shapes of its uploads."""
  # The results of a program, with their shardings, are the arguments of the
  # next one, so that it is compiled as in a round.
  run, segments = local.run, local.segments
  tree, placed = local.placed(store, wave)
  first = server, np.int32(0)
  carry = found.add('start', run.begin, *first, (), tree, placed)
  table, part = segments.described(placed, STEPS)
  carry, _ = found.add(TRAINING, run.train, *first, table, carry, part)
  if local.algorithm.program.has_data_pass:
    table, part = segments.described(placed, PASS)
    carry = found.add('moments', run.measure, *first, table, carry, part)
    carry = found.add('data pass', run.data_pass, *first, table, carry, part)
  ended = (*first, (), (carry, tree), placed)
  return found.add('uploads', run.end, *ended)[0]


def _joined(uploads: Folded, cohort: int, whole: NamedSharding) -> Folded:
  """Returns the shapes of the uploads of all waves, as `compiled.join` does."""

  def every(row: Any) -> Any:
    shape = (cohort, *row.shape[1:])
    return jax.ShapeDtypeStruct(shape, row.dtype, sharding=whole)

  return Folded(
    jax.tree.map(every, uploads.uploads),
    jax.tree.map(every, uploads.raw),
    every(uploads.far),
    uploads.totals,
  )


def of_memory(program: jax.stages.Compiled) -> Memory | None:
  """Returns the memory of a program, None if the compiler has no analysis."""
  found: Any = program.memory_analysis()
  if found is None:  # some platforms have no analysis
    return None
  return Memory(
    found.argument_size_in_bytes,
    found.output_size_in_bytes - found.alias_size_in_bytes,
    found.temp_size_in_bytes,
  )
