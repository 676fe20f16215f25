"""The resident worker of a site, which answers messages of the coordinator.

Between messages it keeps the images and the compiled functions of the site, so
that a round needs no start of Python and no compilation. The private states are
on the disk of the site: a file has the state after a number of rounds whose
update the site has sent, and the coordinator decides from which a round starts.
"""

import dataclasses
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec, refused, terms, told
from fedreid_jax.apps.sites.terms import Facts, Terms
from fedreid_jax.apps.sites.told import SERVER
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import prng, trees, types
from fedreid_jax.core.types import ClientState
from fedreid_jax.data import load, sampling
from fedreid_jax.data.federation import Federation
from fedreid_jax.round import compiled, placement, shapes
from fedreid_jax.round.cohorts import fresh
from fedreid_jax.round.local_rounds import LocalRounds
from fedreid_jax.round.simulated import place
from fedreid_jax.training import build, engine
from fedreid_jax.training.files import atomic, client_files


class Local:
  """The local rounds of the one client of a site.

  Attributes:
    received: shapes of what the site receives, see `shapes.received`.
    first: state of the client before its first message, on the host.
  """

  def __init__(
    self, made: build.Parts, method: engine.Method, terms: Terms, width: int
  ):
    """Places the client on a device; its images are read later.

    Args:
      width: number of clients vmapped at a time, as in a simulation.
    """
    algorithm, plans, options = method
    federation, mesh = made.federation, made.mesh
    clients, shape = federation.clients, federation.image_shape
    self._number, self._whole = terms.number, NamedSharding(mesh, P())
    self._lanes, self._tasks, images, _, split = place(
      clients, plans.planner, shape, 1, options, mesh, adds=False
    )
    program = algorithm.program
    run = compiled.of_program(program, _as_received, mesh, width)
    self._local = LocalRounds(run, images, split, program.runs_data_pass)
    seed = prng.data(options.seed)
    self.received = shapes.received(
      algorithm,
      # Real sites have no public images.
      jax.eval_shape(
        algorithm.init_server,
        made.variables,
        jax.ShapeDtypeStruct((terms.sites,), jnp.float32),
        jax.ShapeDtypeStruct((0, *shape), jnp.uint8),
        seed,
      ),
    )
    # Personal variables that were read from a file start from it.
    loaded = {name: made.variables[name] for name in made.pretrained}
    # Random keys follow from the name, so they are those of the simulation.
    uid = np.uint32(prng.client_uid(clients[0].name))
    init = jax.jit(algorithm.init_client)
    self.first: ClientState = jax.device_get(init(uid, loaded, seed))

  def run(
    self,
    received: dict[str, Any],
    state: ClientState,
    round_: int,
    trains: bool,
  ) -> tuple[types.Upload, ClientState, dict[str, Any], int]:
    """Runs the local part of a round, or the data pass before round 0.

    Returns (upload, state to keep, sums of metrics, number of images), on the
    host.
    """
    # One group, `[1, ...]`: the server sends the parameters of the site's group
    # only.
    shared = {n: leaf[None] for n, leaf in received['shared'].items()}
    drawn, groups = fresh(np.zeros(1, np.int32)), np.zeros(1, np.int32)
    (lanes,) = self._lanes.waves(drawn.clients)
    tasks = self._tasks.of(lanes, drawn, groups, round_)
    # Here the site is client 0 of one. Components use its number in the
    # federation.
    index = np.full(len(lanes), self._number, np.int32)
    tasks = dataclasses.replace(tasks, index=index)
    uploads, (rows, sums) = self._local.wave(
      placement.put((shared, received['messages']), self._whole),
      placement.copies(state, len(lanes)),
      (lanes, tasks),
      round_,
      trains,
    )
    one = trees.rows(placement.get((uploads, rows, sums)), 0)
    return *one, int(tasks.valid.sum())


def _as_received(received: Any) -> Any:
  return received


def read_images(config: Config, name: str = '') -> Federation:
  """The images of a site as one client, by default named as its domain.

  Raises:
    DataError: when the images form several clients.
    ConfigError: for a public set, which would have to be at the server, too.
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


class PrivateStates:
  """The states of one site in one run, by number of rounds."""

  def __init__(self, folder: Path):
    """Creates a folder for its owner only, or raises ResourceError."""
    self._folder = folder
    with errors.on_disk(folder):
      folder.mkdir(parents=True, exist_ok=True)
      # `mkdir` does not change the mode of a folder that exists.
      os.chmod(folder, 0o700)

  def save(self, number: int, state: ClientState, oldest: int) -> None:
    """Writes the state after `number` rounds; deletes those before `oldest`."""
    # safetensors does not notice changed values of a damaged file.
    arrays = client_files.named(state)
    found = {'digest': trees.digest(arrays)}
    atomic.write_bytes(
      self._path(number), safetensors_numpy.save(arrays, found)
    )
    # Older updates may not have arrived, and a coordinator that resumes repeats
    # rounds: it tells how far back it may go.
    for old in self.numbers():
      if old < oldest:
        self._path(old).unlink(missing_ok=True)

  def load(self, number: int, like: Any) -> ClientState:
    """Reads the state after `number` rounds, or raises IntegrityError."""
    path = self._path(number)
    fix = 'restore it from a copy, or start the run again with --restart'
    try:
      data = path.read_bytes()
      arrays = safetensors_numpy.load(data)
      wanted = codec.metadata(data)['digest']
    except (OSError, *codec.UNREADABLE) as error:
      raise errors.IntegrityError(
        f'the private state after {errors.counted(number, "round")} cannot be '
        f'read: {error}',
        str(path),
        fix,
      ) from error
    if trees.digest(arrays) != wanted:
      raise errors.IntegrityError('it was changed', str(path), fix)
    return codec.fit(arrays, like, str(path))

  def numbers(self) -> list[int]:
    """The numbers of rounds of the states that are there."""
    names = (path.stem for path in self._folder.glob('*.safetensors'))
    return sorted(int(name) for name in names if name.isdecimal())

  def _path(self, number: int) -> Path:
    return self._folder / f'{number}.safetensors'


class Worker:
  """Answers messages with the images and the private state of a site."""

  def __init__(
    self,
    config: Config,
    federation: Federation,
    folder: Path,
    say: Callable[[str], None] = print,
  ):
    """Prepares the answers; nothing is compiled yet.

    Raises:
      ConfigError: for a method that real sites refuse.
    """
    refused.check(config)
    self._config, self._federation = config, federation
    self._settled = self._config  # with the server's type, after HELLO
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
    self._greeted = False
    # Built for the first message: terms come from the coordinator, and another
    # run at the same sites has the same terms and needs no compilation.
    self._held: tuple[Terms, Local] | None = None

  def answer(self, data: bytes) -> bytes:
    """The reply to a message; after an error it is a reply FAILED."""
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
        # This process may have been started again with other images or another
        # recipe, which HELLO compares.
        return codec.pack(codec.STRANGER, {})
      return answers[message.kind](message)
    except errors.FedReIDError as error:
      failure = error
    except Exception as error:  # the worker has to survive for later messages
      traceback.print_exception(error)
      what = f'{type(error).__name__}: {error}'
      failure = errors.InternalError(what, 'fedreid site', errors.REPORT)
    self._say(failure.line())
    return codec.pack(codec.FAILED, {'error': told.of(failure)})

  def _hello(self, message: codec.Message) -> bytes:
    there = message.fields['agreed']
    here = terms.settled(self._config, there)
    terms.check_agreed(terms.agreed(here), there)
    if here.model.dtype != self._settled.model.dtype:
      self._held = None
    self._settled, self._greeted = here, True
    return codec.pack(codec.HELLO, self.facts._asdict())

  def _train(self, message: codec.Message) -> bytes:
    fields = message.fields
    given = terms.read_terms(fields.get('terms'), self.facts, SERVER)
    start, round_, oldest = (
      _number(fields, name) for name in ('start', 'round', 'oldest')
    )
    # The states of this round and of those after it belong to the run in
    # progress.
    if not codec.INITIAL <= oldest <= start <= round_:
      raise errors.IntegrityError(
        f'round {round_} from the state after {start} rounds, the oldest of '
        f'which is {oldest}',
        SERVER,
        'use the same version',
      )
    run = str(fields.get('run'))
    # It becomes the name of a folder, and must not lead out of its parent.
    if not re.fullmatch('[0-9a-f]{16}', run):
      raise errors.IntegrityError(
        f'a run named {run!r}', SERVER, 'use the same version'
      )
    local = self._local(given)
    received = codec.fit(message.arrays, local.received, SERVER)
    kept = PrivateStates(self._folder / run)
    # The coordinator says which state counts: it may have missed the last
    # update, or repeat rounds after a restart.
    state = local.first
    if start != codec.INITIAL:
      state = kept.load(start, state)
    trains = message.kind == codec.TRAIN
    upload, state, sums, images = local.run(received, state, round_, trains)
    done = round_ + 1 if trains else 0
    # An update that is not finite does not count, nor does its state.
    if bool(upload.finite):
      kept.save(done, state, oldest)
    names = 'messages', *codec.SCALARS
    sent = {name: getattr(upload, name) for name in names}
    # Before round 0 only these are sent, see `Remote.like`.
    if trains:
      sent |= {'shared': upload.shared, 'sums': sums}
      sent['images'] = np.int32(images)
      steps = errors.counted(int(upload.num_steps), 'step')
      self._say(f'round {done}: {steps}')
    return codec.pack(message.kind, {'name': self.facts.name}, sent)

  def _local(self, given: Terms) -> Local:
    if self._held is None or self._held[0] != given:
      self._held = None  # frees device memory before images are placed again
      sites = errors.counted(given.sites, 'site')
      self._say(f'one of {sites}: reading the images')
      self._held = given, self._build(given)
    return self._held[1]

  def _build(self, given: Terms) -> Local:
    config, (client,) = self._settled, self._federation.clients
    # Labels and columns of the classifier as in a federation of all sites.
    own = client._replace(
      labels=client.labels + client.labels.dtype.type(given.first_label),
      num_identities=given.identities,
    )
    here = self._federation._replace(clients=(own,), targets=())
    made = build.parts(config, here, columns=given.columns, cohort=given.cohort)
    planner, shape, _ = sampling.make(config.local, here.clients, config.seed)
    # Steps and masking of all sites, so that the shapes and the programs are
    # those of a simulation of the same clients.
    plans = engine.Plans(planner, (given.steps, shape[1]), given.masked)
    method = made.method(config, plans, here=1)
    return Local(made, method, given, config.execution.width)


def _number(fields: dict[str, Any], name: str) -> int:
  found = fields.get(name)
  if type(found) is not int or not codec.INITIAL <= found <= terms.MOST:
    raise errors.IntegrityError(
      f'{name} {codec.printable(repr(found))}', SERVER, 'use the same version'
    )
  return found
