"""The local part of a round on the devices, for the lanes of one wave."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax.core import types
from fedreid_jax.round import compiled, placement
from fedreid_jax.round.segments import Segments

Wave = tuple[np.ndarray, types.ClientTask]  # client of each lane, and tasks


@dataclasses.dataclass(frozen=True)
class LocalRounds:
  """Runs the clients of the lanes.

  Attributes:
    run: compiled functions of the clients.
    segments: images of the clients.
    split: sharding over lanes.
    runs_data_pass: `(whether clients train) -> whether a data pass follows`.
  """

  run: compiled.OfClients
  segments: Segments
  split: NamedSharding
  runs_data_pass: Callable[[bool], bool]

  def wave(
    self,
    source: compiled.Source,
    states: types.ClientState,
    wave: Wave,
    round_: int,
    trains: bool,
  ) -> tuple[Any, tuple[Any, Any]]:
    """Returns (uploads, (client states, sums of metrics)) of all lanes.

    Args:
      source: argument of `compiled.Broadcast`.
      states: client states on the host, `[lanes, ...]`.
      trains: whether the clients train; false for the data passes before round
        0.
    """
    lanes, tasks = wave
    tree, placed = placement.put((states, tasks), self.split)
    number = np.int32(round_)
    carry = self.run.begin(source, number, (), tree, placed)
    sums: dict[str, Any] = {}
    if trains:
      for table, part in self.segments.training(lanes, tasks, placed):
        carry, more = self.run.train(source, number, table, carry, part)
        sums = jax.tree.map(jnp.add, sums, more) if sums else more
    if self.runs_data_pass(trains):
      # The data pass needs the moments of all images, hence a pass before it.
      for read in (self.run.measure, self.run.data_pass):
        for table, part in self.segments.passing(lanes, tasks, placed):
          carry = read(source, number, table, carry, part)
    end = self.run.end if trains else self.run.end_untrained
    uploads, (rows, _) = end(source, number, (), (carry, tree), placed)
    return uploads, (rows, sums)
