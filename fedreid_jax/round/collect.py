"""Uploads of a round that come one after another.

If the method adds uploads, each is added when it comes, and is not kept. The
others are kept until all of them are there. Sums in fixed point have the same
bits in any order. Sums in float32 do not: an upload waits for those before it
in canonical order, so that a round does not depend on who is first.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Array
from fedreid_jax.round import compiled, placement
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.server.arithmetic import FixedPoint
from fedreid_jax.round.server.fold import Fold, Folded, Totals
from fedreid_jax.round.server.server_round import Received


class _Sums:
  """Compiled sums of uploads on the first device of a mesh."""

  def __init__(self, fold: Fold, mesh: Mesh):
    self.fold, self.mesh = fold, mesh
    self.in_order = not isinstance(fold.arithmetic, FixedPoint)
    self.zeros = jax.jit(fold.zeros)
    self.add = jax.jit(fold.add, donate_argnums=0)

  def start(self, server: types.ServerState) -> tuple[Any, Any]:
    """Returns (model, states of the server), arguments of `zeros` and `add`."""
    given = trees.rows(server.shared, 0), self.fold.states(server)
    return jax.device_put(jax.device_get(given), self.mesh.devices.flat[0])

  def on_devices(self, totals: Totals, zeros: Totals) -> Totals:
    """Returns sums `[devices, ...]`, of no upload on all but the first one."""
    rest = [zeros] * (self.mesh.devices.size - 1)
    parts = jax.device_get([totals, *rest])
    whole = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
    return placement.put(whole, NamedSharding(self.mesh, P(placement.AXIS)))


class Collector:
  """Collects the uploads of one round after another."""

  def __init__(self, algorithm: Algorithm, size: int, mesh: Mesh):
    """Compiles nothing yet.

    Args:
      size: largest number of uploads of a round, `K`.
    """
    self._size, self._mesh = size, mesh
    self._sums: dict[bool, _Sums] = {}
    if fold := algorithm.fold:
      self._sums[True] = _Sums(fold, mesh)
      self._sums[False] = _Sums(fold.untrained(), mesh)

  def start(
    self, server: types.ServerState, clients: Sequence[int], trains: bool
  ) -> '_Added | _Stacked':
    """Returns the collection of a round, without uploads.

    Args:
      server: state of the server before the round.
      clients: clients of the round, in the order of sampling.
    """
    ranks = {int(k): position for position, k in enumerate(clients)}
    if trains in self._sums:
      return _Added(self._sums[trains], server, ranks, self._size)
    return _Stacked(ranks, self._size, self._mesh)


class _Added:
  """Uploads that are added."""

  def __init__(
    self,
    sums: _Sums,
    server: types.ServerState,
    ranks: dict[int, int],
    size: int,
  ):
    self._sums, self._ranks, self._size = sums, ranks, size
    self._given = sums.start(server)
    self._totals: Totals | None = None
    self._zeros: Any = None
    self._rows: list[Any] = []
    self._expected = sorted(ranks, reverse=True)  # the next one is the last
    self._waiting: dict[int, types.Upload] = {}

  def add(self, client: int, upload: types.Upload) -> None:
    """Adds the upload of a client, or keeps it until those before it came."""
    if not self._sums.in_order:
      self._add(client, upload)
      return
    self._waiting[client] = upload
    while self._expected and self._expected[-1] in self._waiting:
      following = self._expected.pop()
      self._add(following, self._waiting.pop(following))

  def received(self) -> tuple[Received, Array]:
    """Returns (sums, positions in the order of sampling), on devices."""
    for client in sorted(self._waiting):
      self._add(client, self._waiting.pop(client))
    kept = compiled.join(self._rows, self._size)
    index = np.asarray(kept[0].index)
    ranks = np.array([self._ranks.get(int(k), 0) for k in index], np.int32)
    whole = NamedSharding(self._sums.mesh, P())
    (uploads, raw, far), ranks = placement.put((kept, ranks), whole)
    assert self._totals, 'no client sent an upload'
    totals = self._sums.on_devices(self._totals, self._zeros)
    return Folded(uploads, raw, far, totals), ranks

  def _add(self, client: int, upload: types.Upload) -> None:
    if self._totals is None:
      self._totals = self._sums.zeros(*self._given, upload)
      self._zeros = jax.device_get(self._totals)
    rank = jnp.int32(self._ranks.get(client, 0))
    self._totals, kept = self._sums.add(
      self._totals, *self._given, upload, rank
    )
    self._rows.append(jax.tree.map(lambda x: np.asarray(x)[None], kept))


class _Stacked:
  """Uploads that are kept, because the method needs all at once."""

  def __init__(self, ranks: dict[int, int], size: int, mesh: Mesh):
    self._ranks, self._mesh = ranks, mesh
    # K rows, and more until every device has as many.
    self._size = -(-size // mesh.devices.size) * mesh.devices.size
    self._uploads: dict[int, types.Upload] = {}

  def add(self, client: int, upload: types.Upload) -> None:
    """Keeps the upload of a client."""
    self._uploads[client] = upload

  def received(self) -> tuple[Received, Array]:
    """Returns (uploads, positions in the order of sampling), on devices."""
    # Always as many rows, whoever arrived: another shape would compile the
    # round again. Clients that have not arrived are rows of zeros with the
    # index -1 at the end.
    order = sorted(self._uploads)
    rows = [self._uploads.pop(k) for k in order]
    absent = self._size - len(rows)

    def stack(*leaves: Any) -> np.ndarray:
      whole = [np.asarray(leaf) for leaf in leaves]
      return np.stack(whole + [np.zeros_like(whole[0])] * absent)

    uploads = jax.tree.map(stack, *rows)
    index = uploads.index
    index[len(rows) :] = -1
    ranks = np.array([self._ranks.get(int(k), 0) for k in index], np.int32)
    split = NamedSharding(self._mesh, P(placement.AXIS))
    return placement.put((uploads, ranks), split)
