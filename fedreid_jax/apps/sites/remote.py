"""Runs the clients of a round at real sites.

The server's part of a round is the same as in a simulation: the same
components, weights and updates. Messages to the sites replace the local rounds.
A site that does not answer in time, or whose reply does not have the expected
arrays, has not arrived, and the round goes on without it.

An upload is added when its reply comes, and is not kept, if the method adds
uploads and `execution.deterministic` is set; else it waits for those of the
sites before it. A reply with a loss above `FAR` is kept until all are there,
because only then the median of the losses is known; no other one can be far
above it.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec
from fedreid_jax.apps.sites.terms import Facts, Members, Terms
from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Tree
from fedreid_jax.round import shapes
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.clients import Kept, Sent
from fedreid_jax.round.cohorts import Cohort
from fedreid_jax.round.collect import Collector
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.server.server_round import Received
from fedreid_jax.round.settings import SimulationOptions

# Name, in the client states of a checkpoint, of the number of rounds of a site.
KEPT = 'rounds kept at sites'
# A site is left out if its loss of a step is above this and so many times the
# median of all.
FAR = 1000.0
# Arrays of a reply that may be as large as a model.
LARGE = 'shared', 'messages'


class Setting(NamedTuple):
  """The sites of a run as the coordinator addresses them."""

  members: Members  # sends messages to sites
  facts: Sequence[Facts]  # of each site, in canonical order: sorted by name
  terms: Sequence[Terms]  # of each site, in the same order
  run: str  # name of the run at the sites, see `terms.run_name`
  round_s: float  # seconds that sites have for a round
  min_sites: int  # number of updates without which a round does not count
  horizon: int  # number of rounds that a resumed run may repeat


class Remote:
  """Runs the clients of a round at sites, by messages.

  A client state here has the initial personal parameters, which complete the
  server's model for a test, and a number of rounds: the site starts its next
  round from its private state after so many rounds.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    setting: Setting,
    image_shape: tuple[int, int, int],
    options: SimulationOptions,
    size: int,
    mesh: Mesh,
  ):
    """Sends nothing yet.

    Args:
      image_shape: `(H, W, ch)` of the images at the sites.
      size: largest number of sites of a round, `K`.
      mesh: devices of the server.
    """
    self._algorithm, self._setting = algorithm, setting
    self._image_shape, self._options = image_shape, options
    self._names = [one.name for one in setting.facts]
    self._collector = Collector(algorithm, size, mesh)
    # Shapes of the replies by kind; known with the first state of the server.
    self._like: dict[str, Tree] = {}
    self._uploads: dict[bool, types.Upload] = {}
    # The starts of the last rounds; a resumed run asks for none before the
    # oldest. Until there are `horizon` of them, sites delete nothing.
    self._past: deque[np.ndarray] = deque(maxlen=setting.horizon)

  def run(
    self,
    server: types.ServerState,
    store: ClientStore,
    drawn: Cohort,
    round_: int,
    *,
    trains: bool,
  ) -> Sent:
    """Asks the sites of a cohort; those that did not arrive are left out.

    Raises:
      ResourceError: if fewer than `min_sites` arrived, or before round 0 if a
        site did not reply.
    """
    kind = codec.TRAIN if trains else codec.PREPARE
    like = self.like(server)[kind]
    collected = self._collector.start(server, drawn.clients.tolist(), trains)
    found: dict[int, dict[str, Any]] = {}
    held: dict[int, types.Upload] = {}
    for k, reply in self._ask(kind, like, server, store, drawn.clients, round_):
      upload = _upload(k, reply)
      found[k] = {name: reply[name] for name in reply if name not in LARGE}
      if _loss(reply) > FAR:  # until the losses of the others are known
        held[k] = upload
      else:
        collected.add(k, upload)
    for k in self._far(found):
      del found[k]
    for k in held.keys() & found.keys():
      collected.add(k, held[k])
    self._require(len(found), len(drawn.clients), round_, trains)
    done = round_ + 1 if trains else 0
    given = *collected.received(), self._uploads[trains]
    return _sent(found, *given, store, done)

  def like(self, server: types.ServerState) -> dict[str, Tree]:
    """Returns the shapes of the replies of a site by kind."""
    if not self._like:
      options, method = self._options, self._algorithm
      plan, batch = options.plan_shape, options.data_pass_batch
      self._uploads = {
        trains: shapes.upload(method, server, plan, batch, trains)
        for trains in (False, True)
      }
      early, upload = self._uploads[False], self._uploads[True]
      image = self._image_shape
      scalars = {name: getattr(upload, name) for name in codec.SCALARS}
      self._like = {
        codec.PREPARE: scalars | {'messages': early.messages},
        codec.TRAIN: scalars
        | {
          'messages': upload.messages,
          'shared': upload.shared,
          'sums': shapes.metrics(method, server, image, plan, batch),
          'images': jax.ShapeDtypeStruct((), np.int32),
        },
      }
    return self._like

  def _ask(
    self,
    kind: str,
    like: Tree,
    server: types.ServerState,
    store: ClientStore,
    sites: np.ndarray,
    round_: int,
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (site, reply) as replies come."""
    setting = self._setting
    starts = np.array([store.row(k).states[KEPT] for k in range(len(store))])
    shared, groups, messages = jax.device_get(
      (server.shared, server.groups, self._algorithm.messages(server))
    )
    oldest = np.full(len(starts), codec.INITIAL)
    if kind == codec.TRAIN:
      self._past.append(starts)
      if len(self._past) == setting.horizon:
        oldest = self._past[0]

    def message(name: str) -> bytes:
      k = self._names.index(name)
      return codec.pack(
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

    for name, reply in setting.members.ask(
      kind,
      [self._names[k] for k in sites],
      message,
      setting.round_s,
      functools.partial(self._read, like),
      codec.largest(like),
    ):
      yield self._names.index(name), reply

  def _far(self, found: Mapping[int, dict[str, Any]]) -> list[int]:
    """Leaves out sites whose loss is far above that of the others."""
    # The loss of a round is their mean: a single one of 1e12 would end the run.
    losses = {k: _loss(one) for k, one in found.items()}
    finite = sorted(filter(np.isfinite, losses.values()))
    if not finite:
      return []
    largest = FAR * max(1.0, finite[(len(finite) - 1) // 2])
    far = [k for k in sorted(losses) if largest < losses[k] < np.inf]
    for k in far:
      name = self._names[k]
      error = errors.IntegrityError(
        f'a loss of {losses[k]:.4g} a step, far above that of the others',
        f'site {name}',
        'ask its operator; it takes part again in the next round',
      )
      self._setting.members.leave_out(name, error.line())
    return far

  def _read(self, like: Tree, name: str, message: codec.Message) -> Any:
    where = f'site {name}'
    if message.fields.get('name') != name:
      raise errors.IntegrityError(
        'an answer of another site', where, 'give it the name that it had'
      )
    found = codec.fit(message.arrays, like, where)
    facts = self._setting.facts[self._names.index(name)]
    wrong = _impossible(found, facts, self._options.plan_shape[1])
    if wrong:
      raise errors.IntegrityError(
        f'an answer with {wrong}', where, 'install the same version'
      )
    return found

  def _require(
    self, arrived: int, asked: int, round_: int, trains: bool
  ) -> None:
    needed = min(self._setting.min_sites, asked) if trains else asked
    if arrived < max(needed, 1):
      raise errors.ResourceError(
        f'{arrived} of {errors.counted(needed, "site")} answered in '
        f'{self._setting.round_s:g} s',
        f'round {round_ + 1}' if trains else 'before the first round',
        'start the others; the same command resumes the run',
      )


def initial(
  personal: types.Flat, uid: Array, pretrained: types.Flat, seed: Array
) -> types.ClientState:
  """Returns the state of a site before its first message.

  It is an `Algorithm.init_client` with the personal parameters of the server's
  model. Private states stay at the sites, and each site reads the values of
  `pretrained` itself.
  """
  del uid, pretrained, seed
  kept = {KEPT: jnp.asarray(codec.INITIAL, jnp.int32)}
  return types.ClientState(personal, kept, ())


def _upload(site: int, reply: dict[str, Any]) -> types.Upload:
  names = 'messages', *codec.SCALARS
  # Before round 0 no site sends its model.
  return types.Upload(
    index=jnp.int32(site),
    shared=reply.get('shared', {}),
    **{name: reply[name] for name in names},
  )


def _loss(reply: dict[str, Any]) -> float:
  """Returns the mean loss of a step, 0 before round 0."""
  total = float(reply.get('sums', {}).get('loss', 0.0))
  return abs(total) / max(int(reply['num_steps']), 1)


def _sent(
  found: dict[int, dict[str, Any]],
  uploads: Received,
  ranks: Array,
  upload: types.Upload,
  store: ClientStore,
  rounds: int,
) -> Sent:
  """Returns the results of the sites that arrived."""
  order = sorted(found)
  lanes = np.asarray(order, np.int32)
  rows = [found[k] for k in order]
  sums = [one.get('sums', {}) for one in rows]
  # A site's state advances only with an update that counts, and a site does not
  # keep its state of a pass that was not finite.
  whole = np.array([bool(one['finite']) for one in rows])
  states = store.read(lanes)
  kept = {KEPT: np.full(len(lanes), rounds, np.int32)}
  return Sent(
    uploads,
    ranks,
    lanes,
    np.array([one['num_steps'] for one in rows], np.int32),
    sum(int(one.get('images', 0)) for one in rows),
    {name: np.stack([one[name] for one in sums]) for name in sums[0]},
    [
      Kept(np.where(whole, lanes, -1), dataclasses.replace(states, states=kept))
    ],
    upload,
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
