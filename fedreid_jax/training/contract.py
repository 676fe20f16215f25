"""Checks of the requirements on every component, on a toy federation.

`check` runs all checks on one component. The tests of the built-in components
call the functions one by one; each returns the problem that it finds, '' if
there is none. Rounds on random images take seconds.
"""

import importlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import algorithms, errors
from fedreid_jax.config import schema, validation
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import options, plugins, types
from fedreid_jax.data import augment
from fedreid_jax.data.federation import Federation, Images
from fedreid_jax.method.component import Component
from fedreid_jax.models import networks
from fedreid_jax.round import compose, placement
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.training import engine
from fedreid_jax.training.files import checkpoint, client_files

IMAGE_SHAPE = (8, 8, 1)
SIZES = {'ash': 9, 'birch': 14, 'cedar': 5, 'dogwood': 11}
FRACTION = 0.75  # three of four clients
Components = tuple[Component, ...]
TOLERANCE = 2e-5  # between placements, as a share of a leaf's largest value


class Finding(NamedTuple):
  """The result of one check."""

  check: str  # the requirement
  problem: str = ''  # '' if there is none
  serious: bool = True  # a failure, else a warning


def check(name: str, beside: Sequence[str] = ()) -> Iterator[Finding]:
  """Yields the result of every check of a component, with default options.

  Raises:
    ConfigError: no such component, or the toy federation cannot run it.
  """
  own = name in plugins.available(algorithms)
  schema.groups([] if own else [(plugins.COMPONENT, name)])
  module = importlib.import_module(
    plugins.full_name(name, plugins.COMPONENT, algorithms)
  )
  yield Finding('Options are declared', declared(module))
  made = module.make()
  problem = named(name, made)
  yield Finding('make returns a component of its name', problem)
  if problem:
    return
  if own:  # a rule of a user need not be that of a paper
    yield Finding('the docstring states deviations', documented(module), False)
  config, clients = toy_config(), toy_clients()
  # A large rate amplifies the last bit.
  config = replace(config, optim=replace(config.optim, lr=0.005))
  components = method(name, beside)
  try:
    rounds = run_twice(config, clients, components)
  except errors.FedReIDError:
    raise
  except Exception as error:  # A component is code and can raise anything.
    yield Finding('two rounds run', f'{type(error).__name__}: {error}')
    return
  yield Finding('two rounds run')
  checks: tuple[tuple[str, Callable[[TwoRounds], str]], ...] = (
    ('functions are traced once', traced_once),
    ('functions are pure', pure),
    ('states are finite', finite),
  )
  for text, function in checks:
    yield Finding(text, function(rounds))
  text = 'placements on 1 and 2 devices agree'
  if jax.device_count() < 2:
    yield Finding(text, 'not checked, since there is one device', False)
  else:
    yield Finding(text, placed(rounds, config, clients, components))
  with tempfile.TemporaryDirectory() as folder:
    yield Finding('a checkpoint restores', restored(rounds, Path(folder)))


class TwoRounds(NamedTuple):
  """One round of a method, then two rounds from the same start."""

  rounds: Rounds
  variables: types.Flat  # of the model before the rounds
  first: tuple  # server, client states and logs
  second: tuple  # the same after two rounds
  traces: tuple[int, int]  # of the training, after one round and at the end


def toy_client(name: str, num: int, identities: int = 3) -> types.ClientData:
  """Returns a client of random images, `num` of `identities` persons."""
  rng = np.random.default_rng(len(name) * 1000 + num)
  images = rng.integers(0, 256, (num, *IMAGE_SHAPE), dtype=np.uint8)
  labels = (np.arange(num) % identities).astype(np.int32)
  cameras = (np.arange(num) % 2).astype(np.int32)
  return types.ClientData(
    name,
    lambda: images,
    labels,
    cameras,
    np.zeros(num, np.int32),
    int(labels.max()) + 1,
  )


def toy_clients() -> tuple[types.ClientData, ...]:
  """Returns four clients of different sizes, one below two batches."""
  return tuple(toy_client(name, num) for name, num in SIZES.items())


def toy_images(name: str, num: int, identities: int = 3) -> Images:
  """Returns images that no client has."""
  client = toy_client(name, num, identities)
  return Images(
    name, client.images, client.labels, client.cameras, client.modalities
  )


def toy_config() -> Config:
  """Returns a configuration of a tiny convnet on 8x8 images."""
  config = schema.default()
  config.model.name = 'convnet'
  config.model.features = (4, 8)
  config.local.batch, config.local.data_pass_batch = 4, 4
  config.local.identities = 2
  config.augment.pad = 1
  config.data.mean, config.data.std = (0.5,), (0.25,)
  config.data.channels = 'grey'
  return validation.validate(config)


def make_rounds(
  config: Config,
  clients: tuple[types.ClientData, ...],
  components: Components,
  devices: int = 1,
  traces: list | None = None,
) -> tuple[Rounds, types.Flat, types.Model]:
  """Returns (rounds, variables, model); traces are added to the list."""
  model = networks.wrap(
    networks.build(
      config.model,
      max(c.num_identities for c in clients),
      changes=[c.network for c in components if c.network],
    ),
    IMAGE_SHAPE,
  )
  transforms = augment.make(config.augment, config.data.mean, config.data.std)

  # JAX runs Python code only while it traces, which makes traces countable.
  def train(key, images, modalities=None):
    if traces is not None:
      traces.append(1)
    return transforms.train(key, images, modalities)

  federation = Federation(
    clients,
    (),
    IMAGE_SHAPE,
    config.data.mean,
    config.data.std,
    'toy',
    toy_images('public', 40),
  )
  made = engine.make_rounds(
    config,
    federation,
    model,
    components,
    transforms._replace(train=train),
    placement.make_mesh(devices),
  )
  return made, jax.jit(model.init)(jax.random.key(config.seed)), model


def run(made: Rounds, variables: types.Flat, rounds: int) -> tuple:
  """Runs rounds; returns (server on the host, client states, logs)."""
  server, store = made.init(variables)
  server, _ = made.prepare(server, store)
  logs = []
  for round_ in range(rounds):
    server, log = made.round(server, store, round_)
    logs.append(log)
  return jax.device_get(server), store.stacked(), logs


def method(name: str, beside: Sequence[str] = ()) -> Components:
  """A component as the last of a method, after those `beside` it.

  If there are none, it follows FedPav, unless the component itself selects the
  shared parameters.
  """
  (component,) = compose.load((name,), {}, algorithms)
  if not beside and component.shared is not None:
    return (component,)
  return compose.load((*(beside or ('fedpav',)), name), {}, algorithms)


def run_twice(config: Config, clients, components: Components) -> TwoRounds:
  """Runs one round and then two on three of four clients."""
  config = replace(config, fraction=FRACTION)
  traces: list[int] = []
  rounds, variables, _ = make_rounds(config, clients, components, traces=traces)
  first = run(rounds, variables, 1)
  after_one = len(traces)
  second = run(rounds, variables, 2)
  return TwoRounds(rounds, variables, first, second, (after_one, len(traces)))


def named(name: str, component: Any) -> str:
  """Checks that `make` returns a component with the name of its group."""
  if not isinstance(component, Component):
    return f'make returns {type(component).__name__}, not a Component'
  group = plugins.group_of(name)
  if component.name != group:
    return f'the component is named {component.name!r}, not {group!r}'
  return ''


def declared(module: Any) -> str:
  """Checks that `Options` of a module declares fields that can be checked."""
  found = getattr(module, 'Options', None)
  if found is None:
    return ''
  if not (isinstance(found, type) and issubclass(found, options.Checked)):
    return 'Options does not derive from fedreid_jax.core.options.Checked'
  try:
    options.fields(found)
    found()
  except (TypeError, errors.ConfigError) as error:
    return str(error)
  return ''


def documented(module: Any) -> str:
  """Checks that a docstring states the deviations from paper and code."""
  text = ' '.join((module.__doc__ or '').split()).lower()
  wanted = ('deviations from the paper', 'released code')
  missing = [phrase for phrase in wanted if phrase not in text]
  return f'the docstring lacks {", ".join(map(repr, missing))}' * bool(missing)


def traced_once(found: TwoRounds) -> str:
  """Checks that the second round compiles nothing."""
  before, after = found.traces
  return f'{after - before} traces after the first round' * (after > before)


def pure(found: TwoRounds) -> str:
  """Checks that the same start gives the same bits."""
  again = run(found.rounds, found.variables, 1)
  return difference(found.first[:2], again[:2])


def finite(found: TwoRounds) -> str:
  """Checks that all states are finite after two rounds."""
  for path, leaf in _leaves(found.second[:2]):
    if not np.isfinite(leaf).all():
      return f'{path} is not finite'
  return ''


def placed(
  found: TwoRounds, config: Config, clients, components: Components
) -> str:
  """Checks that all clients at once on two devices give the same models."""
  # Clients that are vmapped have other last bits, so that models are compared
  # with a tolerance.
  execution = replace(config.execution, deterministic=False, width=0)
  config = replace(config, fraction=FRACTION, execution=execution)
  rounds, variables, _ = make_rounds(config, clients, components, 2)
  models, _, _ = run(rounds, variables, 1)
  return difference(found.first[0], models, TOLERANCE)


def restored(found: TwoRounds, folder: Path) -> str:
  """Checks that a checkpoint in a folder restores all states."""
  server, states, _ = found.second
  saved = checkpoint.Checkpoints(folder)
  saved.save(2, server, states, {'a': [1]}, 12.5)
  if not saved.latest() == 2 == saved.best():
    return f'the latest step is {saved.latest()}, the best {saved.best()}'
  server_like, like = jax.tree.map(np.zeros_like, (server, states))
  back = saved.restore(2, server_like, like)
  if back[2] != {'a': [1]}:
    return f'the JSON part is {back[2]}'
  return difference((server, states), back[:2])


def difference(a: Any, b: Any, tolerance: float = 0.0) -> str:
  """The first leaf that differs between two trees, or ''.

  The tolerance is a share of the largest value of a leaf, at least of 1; 0
  compares for equality, with NaN equal to NaN.
  """
  if jax.tree.structure(a) != jax.tree.structure(b):
    return 'the states have another structure'
  for (path, x), (_, y) in zip(_leaves(a), _leaves(b), strict=True):
    if x.shape != y.shape or x.dtype != y.dtype:
      return f'{path} is {y.dtype}{y.shape}, not {x.dtype}{x.shape}'
    scale = tolerance * max(np.abs(x).max(initial=0), 1.0)
    if not np.allclose(x, y, rtol=0, atol=scale, equal_nan=not tolerance):
      return f'{path} differs'
  return ''


def _leaves(tree: Any) -> Iterable[tuple[str, np.ndarray]]:
  return client_files.named(jax.device_get(tree)).items()
