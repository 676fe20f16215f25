"""The resident worker of a site: it answers the messages of the coordinator.

It keeps the images, the compiled functions and the private state of the site,
so that a round is neither a start of Python nor a compilation. It answers one
message at a time.
"""

import dataclasses
import functools
import operator
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, private, shapes, terms
from fedreid_jax.apps.sites.terms import Facts, Terms
from fedreid_jax.core import prng, types
from fedreid_jax.core.types import ClientData, ClientState
from fedreid_jax.data import load
from fedreid_jax.data.federation import Federation
from fedreid_jax.data.split import sampling
from fedreid_jax.round import simulation
from fedreid_jax.round.compose import Algorithm
from fedreid_jax.round.devices import transfer
from fedreid_jax.round.devices.client_store import ClientStore
from fedreid_jax.round.local_rounds import Wave
from fedreid_jax.training import build, engine

# The executor at a site: the local rounds of its one client.


class Resident(simulation.Executor):
  """Runs the local rounds of one client, and sends its uploads elsewhere.

  It holds the images and the compiled functions of the site between rounds.

  Attributes:
    received: shapes of what the server sends, see `shapes.broadcast`.
  """

  def __init__(
    self,
    algorithm: Algorithm,
    clients: Sequence[types.ClientData],
    *rest: Any,
    terms: Terms,
  ):
    """Places the images of the site.

    Args:
      algorithm: a federated method.
      clients: the one of the site.
      *rest: as for `simulation.Executor`.
      terms: of the site.
    """
    # The site has the messages of the server and not its state.
    local = algorithm._replace(messages=operator.attrgetter('states'))
    super().__init__(local, clients, *rest)
    self._terms, self._sender = terms, algorithm
    self.received: dict[str, Any] = {}

  def expect(
    self, variables: types.Flat, image_shape: tuple[int, int, int]
  ) -> None:
    """Sets the shapes of what the server sends.

    Args:
      variables: of the model.
      image_shape: `(H, W, ch)`.
    """
    self.received = shapes.broadcast(
      self._sender, variables, self._terms.sites, image_shape
    )

  def first_state(
    self, variables: types.Flat, pretrained: Sequence[str]
  ) -> types.ClientState:
    """Returns the state of the client before round 0, on the host.

    Args:
      variables: of the model before round 0.
      pretrained: names of those that are read from a file.
    """
    loaded = {name: variables[name] for name in pretrained}
    uid = np.uint32(prng.client_uid(self._clients[0].name))
    init = jax.jit(self.algorithm.init_client)
    return jax.device_get(init(uid, loaded, self._seed))

  def local(
    self,
    received: dict[str, Any],
    state: types.ClientState,
    round_: int,
    trains: bool,
  ) -> tuple[types.Upload, types.ClientState, dict[str, Any], int]:
    """Runs the local part of a round.

    Args:
      received: of the server, see `shapes.broadcast`.
      state: of the client, on the host.
      round_: global round.
      trains: whether the client trains; false for the data passes before round
        0.

    Returns:
      (upload, state to keep, sums of metrics, number of images), on the host.
    """
    server = types.ServerState(
      shared={n: leaf[None] for n, leaf in received['shared'].items()},
      groups=jnp.zeros(1, jnp.int32),
      states=received['messages'],
    )
    shapes = jax.eval_shape(lambda: state)
    store = ClientStore(lambda _: state, shapes, 1)
    wave = self._wave(server.groups, round_)
    uploads, (rows, sums) = self._local.wave(
      self.put_server(server), store, wave, round_, trains
    )
    found = jax.tree.map(_first, transfer.get((uploads, rows, sums)))
    return *found, int(wave[1].valid.sum())

  def _wave(self, groups: types.Array, round_: int) -> Wave:
    """Returns the lanes and the task of a round, with the site's index."""
    ((lanes, tasks),) = self._tasks.waves(np.zeros(1, int), groups, round_)
    index = np.full(len(lanes), self._terms.number, np.int32)
    return lanes, dataclasses.replace(tasks, index=index)


def _first(leaf: np.ndarray) -> np.ndarray:
  return leaf[0]


SERVER = 'message of the server'


def read_images(config: Any, name: str = '') -> Federation:
  """Returns the images of a site, as one client.

  Args:
    config: of the site.
    name: of the site; '' for the name of its training domain.

  Raises:
    DataError: when the images are those of several clients.
    ConfigError: for a public set, which the server would have to have, too.
  """
  if config.data.public:
    raise errors.ConfigError(
      'public images at real sites', 'data.public', 'leave it empty'
    )
  options = build.arguments(config, config.data.source)
  found = load.load(config.data, options=options)
  if len(found.clients) != 1:
    names = ', '.join(client.name for client in found.clients)
    raise errors.DataError(
      f'a site is one client, not {len(found.clients)} ({names})',
      'data.sources',
      "name one domain, or set data.client_split='centralised'",
    )
  (client,) = found.clients
  return found._replace(clients=(client._replace(name=name or client.name),))


class Worker:
  """Answers messages with the images and the private state of a site.

  Attributes:
    facts: what the site says about itself.
  """

  def __init__(
    self,
    config: Any,
    federation: Federation,
    folder: Path,
    say: Callable[[str], None] = print,
  ):
    """Prepares the answers; nothing is compiled yet.

    Args:
      config: of the site.
      federation: of `read_images`.
      folder: of the private state.
      say: prints a line.
    """
    self._config, self._federation = config, federation
    self._folder, self._say = folder, say
    (client,) = federation.clients
    _, shape, padded = sampling.make(config.local, (client,), config.seed)
    self.facts = Facts(
      name=client.name,
      images=client.num_images,
      identities=client.num_identities,
      steps=shape[0],
      padded=padded,
      versions=terms.versions(),
    )
    self._fields = terms.agreed(config)
    self._greeted = False
    self._held: tuple[Terms, build.Setup, ClientState] | None = None

  def answer(self, data: bytes) -> bytes:
    """Returns the reply to a message; that to an error names the error."""
    try:
      message = codec.unpack(data, SERVER)
      answers = {
        codec.HELLO: self._hello,
        codec.PREPARE: self._train,
        codec.TRAIN: self._train,
      }
      if message.kind not in answers:
        raise errors.IntegrityError(
          f'unknown message {message.kind!r}', SERVER, 'use the same version'
        )
      if message.kind != codec.HELLO and not self._greeted:
        # It may have started again with other images or another recipe.
        return codec.pack(codec.STRANGER, {})
      return answers[message.kind](message)
    except errors.FedReIDError as error:
      failure = error
    except Exception as error:  # the worker must answer the next message
      traceback.print_exception(error)
      what = f'{type(error).__name__}: {error}'
      failure = errors.InternalError(what, 'site', errors.REPORT)
    self._say(failure.line())
    told = failure.exit_code, failure.what, failure.where, failure.fix
    return codec.pack(codec.FAILED, {'error': told})

  def _hello(self, message: codec.Message) -> bytes:
    terms.check_agreed(self._fields, message.fields['agreed'])
    self._greeted = True
    return codec.pack(codec.HELLO, self.facts._asdict())

  def _train(self, message: codec.Message) -> bytes:
    fields = message.fields
    given, run = Terms(**fields['terms']), str(fields['run'])
    if not terms.is_run(run):  # it becomes the name of a folder
      raise errors.IntegrityError(
        f'a run named {run!r}', SERVER, 'use the same version'
      )
    setup, initial = self._setup(given)
    executor = cast(Resident, setup.executor)
    received = codec.fit(message.arrays, executor.received, SERVER)
    kept = private.PrivateStates(self._folder / run)
    start, round_ = int(fields['start']), int(fields['round'])
    state = initial if start == private.INITIAL else kept.load(start, initial)
    trains = message.kind == codec.TRAIN
    upload, state, sums, images = executor.local(
      received, state, round_, trains
    )
    done = round_ + 1 if trains else 0
    if bool(upload.finite):  # otherwise the update does not count
      kept.save(done, state, int(fields['oldest']))
    sent = {
      'messages': upload.messages,
      'num_examples': upload.num_examples,
      'num_steps': upload.num_steps,
      'finite': upload.finite,
    }
    if trains:
      sent |= {'shared': upload.shared, 'sums': sums}
      sent['images'] = np.int32(images)
      steps = errors.counted(int(upload.num_steps), 'step')
      self._say(f'round {done}: {steps}')
    return codec.pack(message.kind, {'name': self.facts.name}, sent)

  def _setup(self, given: Terms) -> tuple[build.Setup, ClientState]:
    """Returns the parts of the run under these terms, and the first state."""
    if self._held is None or self._held[0] != given:
      self._held = None  # frees the images before they are placed again
      sites = errors.counted(given.sites, 'site')
      self._say(f'one of {sites}: reading the images')
      setup = self._build(given)
      executor = cast(Resident, setup.executor)
      executor.expect(setup.variables, self._federation.image_shape)
      first = executor.first_state(setup.variables, setup.pretrained)
      self._held = given, setup, jax.device_get(first)
    return self._held[1:]

  def _build(self, given: Terms) -> build.Setup:
    (client,) = self._federation.clients
    own = client._replace(
      labels=client.labels + client.labels.dtype.type(given.first_label),
      num_identities=given.identities,
    )

    def plan(local: Any, clients: tuple[ClientData, ...], seed: Any) -> Any:
      planner, shape, _ = sampling.make(local, clients, seed)
      return planner, (given.steps, shape[1]), given.masked

    variant = engine.Variant(
      plan=plan,
      executor=functools.partial(Resident, terms=given),
      cohort=given.cohort,
      columns=given.columns,
    )
    here = self._federation._replace(clients=(own,), targets=())
    return build.assemble(self._config, here, variant)
