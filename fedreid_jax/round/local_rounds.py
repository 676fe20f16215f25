"""The local part of a round on the devices, for one wave after another."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.round import compiled, placement
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.segments import Segments
from fedreid_jax.round.server.fold import Folded

Wave = tuple[np.ndarray, types.ClientTask]  # client of each lane, and tasks


@dataclasses.dataclass(frozen=True)
class LocalRounds:
  """Runs the clients of the lanes.

  Attributes:
    algorithm: the federated method.
    run: its compiled functions.
    segments: images of the clients.
    split: sharding over lanes.
    whole: sharding of what every device has.
    sent: shapes of the uploads before they are added, by whether clients train;
      known after the first wave.
  """

  algorithm: Algorithm
  run: compiled.Compiled
  segments: Segments
  split: NamedSharding
  whole: NamedSharding
  sent: dict[bool, types.Upload] = dataclasses.field(
    default_factory=dict[bool, types.Upload]
  )

  def place(
    self, store: ClientStore, wave: Wave
  ) -> tuple[types.ClientState, types.ClientTask]:
    """Returns the client states and the tasks of all lanes, on devices."""
    lanes, tasks = wave
    here = placement.is_here(self.split, len(lanes)) if store.local else None
    rows = placement.put(store.read(lanes, here), self.split)
    return rows, placement.put(tasks, self.split)

  def placed(
    self, store: ClientStore, wave: Wave
  ) -> tuple[types.ClientState, types.ClientTask]:
    """Returns the shapes of the results of `place`; nothing is read."""
    lanes, tasks = wave

    def rows(leaf: Any) -> Any:
      return jax.ShapeDtypeStruct((len(lanes), *leaf.shape), leaf.dtype)

    states = jax.tree.map(rows, store.shapes)
    return placement.shapes((states, tasks), self.split)

  def wave(
    self,
    server: types.ServerState,
    store: ClientStore,
    wave: Wave,
    round_: int,
    trains: bool,
  ) -> tuple[Any, tuple[Any, Any]]:
    """Returns (uploads, (client states, sums of metrics)) of all lanes.

    Args:
      trains: whether the clients train; false for the data passes before round
        0.
    """
    lanes, tasks = wave
    tree, placed = self.place(store, wave)
    number = np.int32(round_)
    # The results of `end` are sums, which do not have the shapes of an upload.
    if self.algorithm.fold and trains not in self.sent:
      self.sent[trains] = self.shapes(server, tree, placed, trains)
    carry = self.run.begin(server, number, (), tree, placed)
    sums: dict[str, Any] = {}
    if trains:
      for table, part in self.segments.training(lanes, tasks, placed):
        carry, more = self.run.train(server, number, table, carry, part)
        sums = jax.tree.map(jnp.add, sums, more) if sums else more
    if self.algorithm.program.has_data_pass:
      # The data pass needs the moments of all images, hence a pass before it.
      for read in (self.run.measure, self.run.data_pass):
        for table, part in self.segments.passing(lanes, tasks, placed):
          carry = read(server, number, table, carry, part)
    end = self.run.end if trains else self.run.end_untrained
    uploads, (rows, _) = end(server, number, (), (carry, tree), placed)
    return uploads, (rows, sums)

  def fetch(self, store: ClientStore, rows: Any) -> Any:
    """Returns the new client states of all lanes on the host.

    If every process keeps the states of its clients only, the lanes of other
    processes are zeros.
    """
    return placement.get_here(rows) if store.local else placement.get(rows)

  def shapes(
    self, server: types.ServerState, tree: Any, placed: Any, trains: bool
  ) -> types.Upload:
    """Returns the shapes of stacked uploads."""
    run, number = self.run, np.int32(0)
    carry = jax.eval_shape(run.begin, server, number, (), tree, placed)
    end = run.sent if trains else run.sent_untrained
    tree = carry, tree
    return jax.eval_shape(end, server, number, (), tree, placed)[0]

  def round(
    self,
    server: types.ServerState,
    store: ClientStore,
    parts: list[Wave],
    round_: int,
    cohort: int,
    following: Callable[[], Wave | None],
  ) -> tuple[Any, Any, list[Any], dict[str, np.ndarray]]:
    """Trains the clients of a round, one wave after another.

    Args:
      parts: waves; there are several only if uploads are added.
      following: returns the first wave of the next round, None if there is no
        next round. Its images are read while the last wave of this round is
        computed.

    Returns:
      (uploads, their positions in the order of sampling, client states of each
      wave on the host, sums of metrics of all lanes on the host).
    """

    def keep(uploads: Any, rows: Any, sums: Any) -> tuple[Any, Any, Any]:
      kept, counted = placement.get((_rows(uploads), sums))
      return kept, self.fetch(store, rows), counted

    uploads, (rows, sums) = self.wave(server, store, parts[0], round_, True)
    if len(parts) == 1:
      self._read_ahead(following)
      ranks = placement.put(parts[0][1].drawn, self.split)
      rows = [self.fetch(store, rows)]
      return uploads, ranks, rows, placement.get(sums)
    totals, found = uploads.totals, []
    for wave in parts[1:]:
      more, (later, counted) = self.wave(server, store, wave, round_, True)
      totals = self.run.add(totals, more.totals)
      # To copy the rows of the last wave means to wait for them. By now the
      # devices have the next wave to compute.
      found.append(keep(uploads, rows, sums))
      uploads, rows, sums = more, later, counted
    self._read_ahead(following)
    found.append(keep(uploads, rows, sums))
    joined = compiled.join([kept for kept, _, _ in found], cohort)
    index = np.asarray(joined[0].index)
    ranks = compiled.ranks(index, [tasks for _, tasks in parts])
    columns: list[dict[str, np.ndarray]] = [counted for _, _, counted in found]
    sums = {n: np.concatenate([c[n] for c in columns]) for n in columns[0]}
    (kept, raw, far), ranks = placement.put((joined, ranks), self.whole)
    folded = Folded(kept, raw, far, totals)
    return folded, ranks, [rows for _, rows, _ in found], sums

  def _read_ahead(self, following: Callable[[], Wave | None]) -> None:
    if self.segments.resident is not None:
      return
    # The next round meets an error of its wave again. It must not end this one.
    with contextlib.suppress(errors.FedReIDError):
      if wave := following():
        self.segments.read_ahead(*wave)


def _rows(folded: Folded) -> tuple[Any, Any, Any]:
  """Returns the parts of each upload that a round of sums keeps."""
  return folded.uploads, folded.raw, folded.far
