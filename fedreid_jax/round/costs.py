"""Costs of a round, from its programs, which are compiled and not run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import types
from fedreid_jax.round import placement, round_log
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.local_rounds import Wave
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.round.segments import PASS, STEPS
from fedreid_jax.round.server.fold import Folded
from fedreid_jax.round.simulated import Simulated

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
  rounds: Rounds,
  simulated: Simulated,
  server: types.ServerState,
  store: ClientStore,
  waves: list[Wave],
) -> Programs:
  """Compiles the programs of a round."""
  found = Programs()
  uploads = _of_clients(found, simulated, server, store, waves[0])
  if len(waves) > 1:
    add, cohort = simulated.local.run.add, rounds.cohorts.size
    found.add('sum of waves', add, uploads.totals, uploads.totals)
    uploads = _joined(uploads, cohort, rounds.whole)
    ranks = placement.put(np.zeros(cohort, np.int32), rounds.whole)
  else:
    ranks = placement.put(waves[0][1].drawn, simulated.local.split)
  given = server, uploads, ranks, *rounds.of_round(0)
  found.add('aggregation', rounds.on_server.aggregate, *given)
  return found


def placed(
  simulated: Simulated, store: ClientStore, wave: Wave
) -> tuple[types.ClientState, types.ClientTask]:
  """Returns the shapes of the states and tasks of all lanes; reads nothing."""
  lanes, tasks = wave

  def rows(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct((len(lanes), *leaf.shape), leaf.dtype)

  states = jax.tree.map(rows, store.shapes)
  return placement.shapes((states, tasks), simulated.local.split)


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
  simulated: Simulated,
  server: types.ServerState,
  store: ClientStore,
  wave: Wave,
) -> Any:
  """Adds the programs of `LocalRounds.wave`; returns shapes of its uploads."""
  # The results of a program, with their shardings, are the arguments of the
  # next one, so that it is compiled as in a round.
  run, segments = simulated.local.run, simulated.local.segments
  tree, tasks = placed(simulated, store, wave)
  first = server, np.int32(0)
  carry = found.add('start', run.begin, *first, (), tree, tasks)
  table, part = segments.described(tasks, STEPS)
  carry, _ = found.add(TRAINING, run.train, *first, table, carry, part)
  if simulated.algorithm.program.has_data_pass:
    table, part = segments.described(tasks, PASS)
    carry = found.add('moments', run.measure, *first, table, carry, part)
    carry = found.add('data pass', run.data_pass, *first, table, carry, part)
  ended = (*first, (), (carry, tree), tasks)
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
