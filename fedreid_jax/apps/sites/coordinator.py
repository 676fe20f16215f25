"""The executor of a coordinator, whose clients train at real sites.

The server's part of a round is the same as in a simulation: the same
components, weights and updates. Messages to the sites replace the local rounds.
A site that does not answer in time, or whose reply does not have the expected
arrays, has not arrived, and the round goes on without it.
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec
from fedreid_jax.apps.sites.terms import Facts, Members, Terms
from fedreid_jax.core import trees, types
from fedreid_jax.core.types import Tree
from fedreid_jax.round import placement, round_log, simulation
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.settings import SimulationOptions
from fedreid_jax.training import build

# Name, in the client states of a checkpoint, of the number of rounds of a site.
KEPT = 'rounds kept at sites'
# A site is left out if its loss is so many times the median of all.
FAR = 1000.0


class Setting(NamedTuple):
  """The sites of a run as the coordinator addresses them."""

  members: Members  # sends messages to sites
  facts: Sequence[Facts]  # of each site, in canonical order: sorted by name
  terms: Sequence[Terms]  # of each site, in the same order
  run: str  # name of the run at the sites, see `terms.run_name`
  round_s: float  # seconds that sites have for a round
  min_sites: int  # number of updates without which a round does not count
  horizon: int  # number of rounds that a resumed run may repeat


class Coordinator(simulation.Executor):
  """Runs rounds whose local parts run at sites.

  A client state here has the initial personal parameters, which complete the
  server's model for a test, and a number of rounds: the site starts its next
  round from its private state after so many rounds.
  """

  # Shapes of the replies by kind; set by `init`, which knows the model.
  _like: dict[str, Tree]

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[types.ClientData],
    planner: Any,
    image_shape: tuple[int, int, int],
    options: SimulationOptions,
    *rest: Any,
    setting: Setting,
  ):
    # With a budget below any image, none is placed on a device.
    small = options._replace(budget=1)
    super().__init__(algorithm, clients, planner, image_shape, small, *rest)
    self._setting, self._image_shape = setting, image_shape
    self._batch = options.plan_shape[1]
    self._names = [client.name for client in clients]
    # The starts of the last rounds; a resumed run asks for none before the
    # oldest. Until there are `horizon` of them, sites delete nothing.
    self._past: deque[np.ndarray] = deque(maxlen=setting.horizon)

  def init(
    self,
    variables: types.Flat,
    pretrained: Sequence[str] = (),
  ) -> tuple[types.ServerState, ClientStore]:
    """Returns (server state on the device, client states of the sites).

    Each site reads the values of `pretrained` itself.

    Raises:
      ConfigError: if the server's model cannot be tested or nothing is shared.
    """
    del pretrained
    shared, personal = trees.split(variables, self.algorithm.shared)
    # Tests of retrieval do not use the classifier, so it alone may be missing.
    _, lacking = trees.split(personal, build.CLASSIFIER)
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
    self._like = self._shapes(variables)
    # Private states stay at the sites. A test needs the shape of a classifier,
    # not its values.
    kept = {KEPT: np.asarray(codec.INITIAL, np.int32)}
    one = types.ClientState(jax.device_get(personal), kept, ())
    shapes = jax.eval_shape(lambda: one)
    return server, ClientStore(lambda _: one, shapes, len(sizes))

  def _shapes(self, variables: types.Flat) -> dict[str, Tree]:
    prepared, upload, sums = codec.reply_shapes(
      self.algorithm,
      codec.broadcast_shapes(
        self.algorithm, variables, len(self._clients), self._image_shape
      ),
      self._image_shape,
      self._options.plan_shape,
      self._options.data_pass_batch,
    )
    scalars = {name: getattr(upload, name) for name in codec.SCALARS}
    rest = {'sums': sums, 'images': jax.ShapeDtypeStruct((), np.int32)}
    sent = {'messages': upload.messages, 'shared': upload.shared}
    return {
      codec.PREPARE: scalars | {'messages': prepared.messages},
      codec.TRAIN: scalars | sent | rest,
    }

  def compile_ahead(
    self, server: types.ServerState, store: ClientStore
  ) -> Callable[[], Any]:
    """Compiles nothing: the programs of a client run at its site."""
    del server, store
    return lambda: None

  def prepare(
    self, server: types.ServerState, store: ClientStore
  ) -> tuple[types.ServerState, dict[str, Counter[str]]]:
    """Runs the data passes before round 0, if the method has any.

    Raises:
      ResourceError: if a site does not reply.
    """
    log: dict[str, Counter[str]] = {'up': Counter(), 'down': Counter()}
    if not self.algorithm.prepares:
      return server, log
    for members in self._tasks.everyone():
      replies = self._ask(codec.PREPARE, server, store, members, 0)
      if len(replies) < len(members):
        raise self._missing(replies, len(members), 'before the first round')
      uploads, _ = self._stacked(replies, codec.PREPARE)
      for way, sizes in round_log.wire(
        self.algorithm, server, uploads, members, len(self._clients), False
      ).items():
        log[way].update(sizes)
      server = self._run.receive(server, uploads)
      # A site does not keep its state of a pass that was not finite.
      whole = [k for k, reply in replies.items() if reply['finite']]
      _keep(store, np.asarray(whole, np.int32), 0)
    return server, log

  def round(
    self, server: types.ServerState, store: ClientStore, round_: int
  ) -> tuple[types.ServerState, dict[str, Any]]:
    """Runs a round at its cohort and returns (server, log) of arrived sites.

    Raises:
      ResourceError: if fewer than `min_sites` arrived.
    """
    drawn = self._tasks.sample(round_)
    replies = self._near(self._ask(codec.TRAIN, server, store, drawn, round_))
    needed = min(self._setting.min_sites, len(drawn))
    if len(replies) < max(needed, 1):
      raise self._missing(replies, needed, f'round {round_ + 1}')
    uploads, rest = self._stacked(replies, codec.TRAIN)
    lanes, steps = np.asarray(uploads.index), np.asarray(uploads.num_steps)
    clients = np.asarray(sorted(replies), np.int32)
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
      placement.put(uploads, self._split),
      placement.put(rank[lanes], self._split),
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

  def _ask(
    self,
    kind: str,
    server: types.ServerState,
    store: ClientStore,
    members: np.ndarray,
    round_: int,
  ) -> dict[int, Any]:
    setting, starts = self._setting, store.stacked().states[KEPT]
    shared, groups, messages = jax.device_get(
      (server.shared, server.groups, self.algorithm.messages(server))
    )
    oldest = np.full(len(starts), codec.INITIAL)
    if kind == codec.TRAIN:
      self._past.append(starts.copy())
      if len(self._past) == setting.horizon:
        oldest = self._past[0]
    asked = {
      self._names[k]: codec.pack(
        kind,
        {
          'terms': setting.terms[k]._asdict(),
          'run': setting.run,
          'round': round_,
          'start': int(starts[k]),
          'oldest': int(oldest[k]),
        },
        {
          'shared': {n: leaf[groups[k]] for n, leaf in shared.items()},
          'messages': messages,
        },
      )
      for k in members
    }
    replies = setting.members.ask(
      kind, asked, setting.round_s, self._read, codec.largest(self._like[kind])
    )
    return {self._names.index(name): reply for name, reply in replies.items()}

  def _near(self, replies: dict[int, Any]) -> dict[int, Any]:
    """Leaves out sites whose loss is far above that of the others."""
    # The loss of a round is their mean: a single one of 1e12 would end the run.
    losses = {
      k: abs(float(one['sums']['loss'])) / max(int(one['num_steps']), 1)
      for k, one in replies.items()
    }
    finite = sorted(filter(np.isfinite, losses.values()))
    if not finite:
      return replies
    largest = FAR * max(1.0, finite[(len(finite) - 1) // 2])
    far = [k for k, loss in losses.items() if largest < loss < np.inf]
    for k in far:
      name = self._names[k]
      error = errors.IntegrityError(
        f'a loss of {losses[k]:.4g} a step, far above that of the others',
        f'site {name}',
        'ask its operator; it takes part again in the next round',
      )
      self._setting.members.leave_out(name, error.line())
    return {k: one for k, one in replies.items() if k not in far}

  def _read(self, name: str, message: codec.Message) -> Any:
    where = f'site {name}'
    if message.fields.get('name') != name:
      raise errors.IntegrityError(
        'an answer of another site', where, 'give it the name that it had'
      )
    found = codec.fit(message.arrays, self._like[message.kind], where)
    wrong = _impossible(
      found, self._setting.facts[self._names.index(name)], self._batch
    )
    if wrong:
      raise errors.IntegrityError(
        f'an answer with {wrong}', where, 'install the same version'
      )
    return found

  def _stacked(
    self, replies: dict[int, Any], kind: str
  ) -> tuple[types.Upload, dict[str, Any]]:
    """Stacks uploads to `[K, ...]`, with `sums` of metrics and `images`."""
    # Always as many rows, whoever arrived: another shape would compile the
    # round again. K rows, and more until every device has as many. Sites that
    # have not arrived are rows of zeros with the index -1 at the end. In
    # canonical order, so that sums do not depend on who answers first.
    devices = self._split.mesh.size
    order, size = sorted(replies), -(-self._tasks.size // devices) * devices
    absent = size - len(order)
    rows = [replies[k] for k in order] + [_zeros(self._like[kind])] * absent
    whole = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    # Before round 0 no site sends its model, but an upload has one.
    if 'shared' not in whole:
      shared = _zeros(self._like[codec.TRAIN]['shared'])
      whole['shared'] = placement.copies(shared, size)
    index = jnp.asarray([*order, *[-1] * absent], jnp.int32)
    rest = {name: whole.pop(name, {}) for name in ('sums', 'images')}
    return types.Upload(index=index, **whole), rest

  def _missing(
    self, replies: dict[int, Any], needed: int, when: str
  ) -> errors.ResourceError:
    return errors.ResourceError(
      f'{len(replies)} of {errors.counted(needed, "site")} answered in '
      f'{self._setting.round_s:g} s',
      when,
      'start the others; the same command resumes the run',
    )


def _impossible(reply: dict[str, Any], facts: Facts, batch: int) -> str:
  """Names what a site with these facts cannot have sent, '' if nothing."""
  examples, steps = float(reply['num_examples']), int(reply['num_steps'])
  if examples != facts.images:
    return f'{examples:g} images, not {facts.images} as when the run began'
  trained = 'shared' in reply  # or it is of the pass before round 0
  if not trained <= steps <= facts.steps:
    return f'{errors.counted(steps, "step")} of at most {facts.steps}'
  if trained and not 0 <= int(reply['images']) <= steps * batch:
    return f'{int(reply["images"])} images in {errors.counted(steps, "step")}'
  # The aggregation leaves out an update that is not finite, and its metrics,
  # whatever the site says. Nothing does so for metrics of another update, which
  # would be those of the round, nor for a message before round 0.
  if trained and all(
    np.isfinite(leaf).all() for leaf in reply['shared'].values()
  ):
    for name, total in reply['sums'].items():
      if not np.isfinite(total):
        return f'the metric {name} = {float(total):g} of a finite update'
    share = float(reply['sums'].get('accuracy', 0.0)) / max(steps, 1)
    if not -0.01 <= share <= 100.01:
      return f'an accuracy of {share:g} %'
  leaves = jax.tree.leaves(reply['messages'])
  if not (trained or all(np.isfinite(leaf).all() for leaf in leaves)):
    return 'values that are not finite'
  return ''


def _keep(store: ClientStore, sites: np.ndarray, rounds: int) -> None:
  if sites.size:
    rows = store.read(sites)
    kept = {KEPT: np.full(len(sites), rounds, np.int32)}
    rows = dataclasses.replace(rows, states=kept)
    store.write(sites, rows, np.ones(len(sites), bool))


def _zeros(like: Tree) -> Any:
  return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
