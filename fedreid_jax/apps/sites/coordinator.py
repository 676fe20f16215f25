"""The executor of a coordinator, whose clients train at real sites.

The server's part of a round is the same as in a simulation: the same
components, weights and updates. Messages to the sites replace the local rounds.
A site that does not answer in time, or whose reply does not have the expected
arrays, has not arrived, and the round goes on without it.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, exchange, private, replies
from fedreid_jax.core import param_filter, types
from fedreid_jax.round import round_log, simulation
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.devices import transfer
from fedreid_jax.round.devices.client_store import ClientStore
from fedreid_jax.round.settings import SimulationOptions
from fedreid_jax.training import build

# Name, in the client states of a checkpoint, of the number of rounds of a site.
KEPT = 'rounds kept at sites'


class Coordinator(simulation.Executor):
  """Runs rounds whose local parts run at sites.

  A client state here has the initial personal parameters, which complete the
  server's model for a test, and a number of rounds: the site starts its next
  round from its private state after so many rounds.
  """

  _replies: replies.Replies  # set by `init`, which knows the model

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[types.ClientData],
    planner: Any,
    image_shape: tuple[int, int, int],
    options: SimulationOptions,
    *rest: Any,
    setting: exchange.Setting,
  ):
    """Prepares the rounds; no image is read.

    Args:
      algorithm: a federated method.
      clients: placeholders of the sites.
      planner: not used.
      image_shape: `(H, W, ch)`.
      options: of the simulation.
      *rest: as for `simulation.Executor`.
      setting: of the sites.
    """
    # With a budget below any image, none is placed on a device.
    small = options._replace(budget=1)
    super().__init__(algorithm, clients, planner, image_shape, small, *rest)
    self._setting, self._image_shape = setting, image_shape
    self._ask = exchange.Exchange(
      setting, [c.name for c in clients], algorithm.messages
    )

  def init(
    self,
    variables: types.Flat,
    pretrained: Sequence[str] = (),
  ) -> tuple[types.ServerState, ClientStore]:
    """Returns (server state on the device, client states of the sites).

    Args:
      variables: of the model before round 0.
      pretrained: not used; each site reads the file itself.

    Raises:
      ConfigError: if the server's model cannot be tested or nothing is shared.
    """
    del pretrained
    shared, personal = param_filter.split(variables, self.algorithm.shared)
    # Tests of retrieval do not use the classifier, so it alone may be missing.
    _, lacking = param_filter.split(personal, build.CLASSIFIER)
    if lacking or not shared:
      raise errors.ConfigError(
        f'{next(iter(lacking), "every parameter")} stays at the sites, so the '
        'server has no model to test',
        'components',
        'share all parameters but the classifier',
      )
    sizes = np.asarray([c.num_images for c in self._clients], np.float32)
    init = jax.jit(self.algorithm.init_server, out_shardings=self._whole)
    server = init(variables, sizes, self._public, self._seed)
    self._replies = replies.Replies(
      self.algorithm,
      variables,
      len(sizes),
      self._image_shape,
      self._options.plan_shape,
      self._options.data_pass_batch,
    )
    # Private states stay at the sites. A test needs the shape of a classifier,
    # not its values.
    kept = {KEPT: np.asarray(private.INITIAL, np.int32)}
    one = types.ClientState(jax.device_get(personal), kept, ())
    shapes = jax.eval_shape(lambda: one)
    return server, ClientStore(lambda _: one, shapes, len(sizes))

  def prepare(
    self, server: types.ServerState, store: ClientStore
  ) -> tuple[types.ServerState, dict[str, Counter[str]]]:
    """Runs the data passes of all sites before round 0, if there are any.

    Args:
      server: server state, donated if there is a pass.
      store: of `init`; the number of rounds of each site is written.

    Raises:
      ResourceError: if a site did not answer.
    """
    log: dict[str, Counter[str]] = {'up': Counter(), 'down': Counter()}
    if not self.algorithm.prepares:
      return server, log
    for members in self._tasks.everyone():
      found = self._ask(
        codec.PREPARE, server, _kept(store), members, 0, self._replies.read
      )
      if len(found) < len(members):
        raise self._ask.missing(
          len(found), len(members), 'before the first round'
        )
      uploads, _ = self._replies.stacked(found, codec.PREPARE, self._tasks.size)
      for way, sizes in round_log.wire(
        self.algorithm, server, uploads, members, len(self._clients), False
      ).items():
        log[way].update(sizes)
      server = self._run.receive(server, uploads)
      # A site does not keep its state of a pass that was not finite.
      whole = [k for k, reply in found.items() if reply['finite']]
      _keep(store, np.asarray(whole, np.int32), 0)
    return server, log

  def round(
    self, server: types.ServerState, store: ClientStore, round_: int
  ) -> tuple[types.ServerState, dict[str, Any]]:
    """Runs one round at the sites of its cohort.

    Args:
      server: server state, donated.
      store: of `init`; the rows of sites whose upload counts are written.
      round_: global round.

    Returns:
      (server, log) as `simulation.Executor.round`, of the sites that arrived.

    Raises:
      ResourceError: if fewer than `min_sites` arrived.
    """
    drawn = self._tasks.sample(round_)
    found = self._ask(
      codec.TRAIN, server, _kept(store), drawn, round_, self._replies.read
    )
    needed = min(self._setting.min_sites, len(drawn))
    if len(found) < max(needed, 1):
      raise self._ask.missing(len(found), needed, f'round {round_ + 1}')
    # Always K rows, whoever arrived: another shape would compile the round
    # again.
    uploads, rest = self._replies.stacked(found, codec.TRAIN, self._tasks.size)
    lanes, steps = np.asarray(uploads.index), np.asarray(uploads.num_steps)
    clients = np.asarray(sorted(found), np.int32)
    log: dict[str, Any] = {
      **round_log.wire(
        self.algorithm, server, uploads, clients, len(self._clients), True
      )
    }
    # Ranks in the drawn cohort do not depend on which sites arrived.
    rank = np.zeros(len(self._clients), np.int32)
    rank[drawn] = np.arange(len(drawn))
    server, entries = self._run.aggregate(
      server,
      transfer.put(uploads, self._split),
      transfer.put(rank[lanes], self._split),
      np.int32(round_),
      self._public,
      self._seed,
    )
    entries, measured = round_log.of_server(entries, len(clients))
    # A site's state advances only with an update that counts; other sites start
    # from their last state again.
    counted, kept = clients[entries['valid']], clients[entries.pop('kept')]
    _keep(store, kept, round_ + 1)
    valid = np.isin(lanes, counted)
    log |= round_log.training(rest['sums'], steps, valid)
    log['metrics'] |= measured
    log['per_client'] = round_log.per_client(rest['sums'], steps, lanes)
    log['images'] = int(rest['images'].sum())
    return server, log | entries | {'clients': clients}


def _kept(store: ClientStore) -> np.ndarray:
  """Returns the number of rounds in each site's private state, int32 `[N]`."""
  return store.stacked().states[KEPT]


def _keep(store: ClientStore, sites: np.ndarray, rounds: int) -> None:
  """Writes the number of rounds of some sites to their client states."""
  if sites.size:
    rows = store.read(sites)
    kept = {KEPT: np.full(len(sites), rounds, np.int32)}
    rows = dataclasses.replace(rows, states=kept)
    store.write(sites, rows, np.ones(len(sites), bool))
