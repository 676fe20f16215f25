"""Compiles the programs of a round without running them."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import types
from fedreid_jax.round.devices import transfer
from fedreid_jax.round.devices.client_store import ClientStore
from fedreid_jax.round.local_rounds import LocalRounds, Wave
from fedreid_jax.round.server.fold import Folded

TRAINING = 'training'


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
    return jax.tree.map(_shape, made.out_info, made.output_shardings)


def of_round(
  local: LocalRounds,
  server: types.ServerState,
  store: ClientStore,
  waves: list[Wave],
  cohort: int,
  public: types.Array,
  seed: Any,
) -> Programs:
  """Compiles the programs of a round.

  Args:
    local: local part of the rounds.
    server: server state.
    store: client states.
    waves: waves of the round.
    cohort: `K`.
    public: images of the public set.
    seed: `prng.data` of the run's seed.
  """
  found = Programs()
  uploads = _of_clients(found, local, server, store, waves[0])
  if len(waves) > 1:
    found.add('sum of waves', local.run.add, uploads.totals, uploads.totals)
    uploads = _joined(uploads, cohort, local.whole)
    ranks = transfer.put(np.zeros(cohort, np.int32), local.whole)
  else:
    ranks = transfer.put(waves[0][1].drawn, local.split)
  given = server, uploads, ranks, np.int32(0), public, seed
  found.add('aggregation', local.run.aggregate, *given)
  return found


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
  lanes, tasks = wave
  tree, placed = local.place(store, wave)
  first = server, np.int32(0)
  carry = found.add('start', run.begin, *first, (), tree, placed)
  table, part = next(segments.training(lanes, tasks, placed))
  carry, _ = found.add(TRAINING, run.train, *first, table, carry, part)
  if local.algorithm.program.has_data_pass:
    table, part = next(segments.passing(lanes, tasks, placed))
    carry = found.add('moments', run.measure, *first, table, carry, part)
    carry = found.add('data pass', run.data_pass, *first, table, carry, part)
  ended = (*first, (), (carry, tree), placed)
  return found.add('uploads', run.end, *ended)[0]


def _joined(uploads: Folded, cohort: int, whole: NamedSharding) -> Folded:
  """Returns the shapes of the uploads of all waves, as `waves.join` does."""

  def every(row: Any) -> Any:
    shape = (cohort, *row.shape[1:])
    return jax.ShapeDtypeStruct(shape, row.dtype, sharding=whole)

  def placed(leaf: Any) -> Any:
    return _shape(leaf, whole)

  return Folded(
    jax.tree.map(every, uploads.uploads),
    jax.tree.map(every, uploads.raw),
    every(uploads.far),
    jax.tree.map(placed, uploads.totals),
  )


def _shape(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
