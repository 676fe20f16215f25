"""The programs of a round before it runs: compiled ahead, or for their costs.

All functions need `Rounds.simulated`. Server states may be shapes.
"""

from collections.abc import Callable
from concurrent import futures
from typing import Any

import jax
import numpy as np

from fedreid_jax.core import types
from fedreid_jax.round import costs, placement, round_log, segments
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.local_rounds import Wave
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.round.simulated import Simulated

COMPILER = 'compiler'  # beginning of the name of its thread


def start(
  rounds: Rounds, server: types.ServerState, store: ClientStore
) -> Callable[[], Any]:
  """Begins to compile the programs of a round in another thread.

  Returns:
    A function that waits for the programs and raises the errors of the
    compiler. A round that begins before it has returned compiles them again.
  """
  # The shapes suffice, and a program may donate the state meanwhile.
  shapes = placement.shapes(server, rounds.whole)

  def make() -> None:
    _compiled(rounds, shapes, store)  # JAX keeps the programs

  thread = futures.ThreadPoolExecutor(1, COMPILER)
  ahead = thread.submit(make)
  thread.shutdown(wait=False)
  return ahead.result


def forecast(
  rounds: Rounds, server: types.ServerState, store: ClientStore
) -> costs.Costs:
  """Compiles the programs of round 0 and returns its costs.

  Nothing is run. If images do not stay on devices, the program of one segment
  of steps is counted.
  """
  return compiled(rounds, server, store)[1]


def compiled(
  rounds: Rounds, server: types.ServerState, store: ClientStore
) -> tuple[costs.Programs, costs.Costs]:
  """Compiles as `forecast` does, and also returns the programs."""
  found, waves, sent = _compiled(rounds, server, store)
  return found, costs.of_programs(found, waves, sent)


def _compiled(
  rounds: Rounds, server: types.ServerState, store: ClientStore
) -> tuple[costs.Programs, list[types.ClientTask], round_log.Bytes]:
  """Returns the programs of round 0, its tasks and the bytes sent."""
  waves = _first(rounds, server, store)
  simulated, drawn = _simulated(rounds), rounds.cohorts.first()
  upload = simulated.upload(server, True)
  sent = rounds.wire(server, upload, drawn.clients, True)
  found = costs.of_round(rounds, simulated, server, store, waves)
  return found, [tasks for _, tasks in waves], sent


def programs(
  rounds: Rounds, server: types.ServerState, store: ClientStore
) -> dict[str, jax.stages.Traced]:
  """Returns the programs of round 0, 'training' and 'aggregation'.

  They can be lowered for any platform. Nothing is compiled or run.
  """
  simulated, number = _simulated(rounds), np.int32(0)
  run = simulated.local.run
  wave, *_ = _first(rounds, server, store)
  tree, placed = costs.placed(simulated, store, wave)
  carry = jax.eval_shape(run.begin, server, number, (), tree, placed)
  uploads, _ = jax.eval_shape(
    run.end, server, number, (), (carry, tree), placed
  )
  table, part = simulated.local.segments.described(placed, segments.STEPS)
  ranks = np.zeros(len(wave[0]), np.int32)
  return {
    'training': run.train.trace(server, number, table, carry, part),
    'aggregation': rounds.on_server.aggregate.trace(
      server, uploads, ranks, *rounds.of_round(0)
    ),
  }


def _first(
  rounds: Rounds, server: types.ServerState, store: ClientStore
) -> list[Wave]:
  """Returns the waves of round 0."""
  # All clients are in one group before round 0.
  groups = np.zeros(len(store), np.int32)
  if not placement.are_shapes(server.groups):
    groups = np.asarray(server.groups)
  return _simulated(rounds).waves(rounds.cohorts.first(), groups, 0)


def _simulated(rounds: Rounds) -> Simulated:
  assert rounds.simulated, 'the clients of these rounds are elsewhere'
  return rounds.simulated
