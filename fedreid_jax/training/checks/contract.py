"""Checks of the requirements on every component, on a toy federation.

`check` runs all checks on one component, for `fedreid check-component`. The
tests of the built-in components call the functions one by one. The function of
a check returns the problem that it finds, '' if there is none.
"""

import functools
import importlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import algorithms, errors
from fedreid_jax.config import schema
from fedreid_jax.core import options, plugins
from fedreid_jax.method.component import Component
from fedreid_jax.training.checks.toy_federation import (
  FRACTION,
  Components,
  Rounds,
  make_executor,
  method,
  run,
  run_twice,
  toy_clients,
  toy_config,
)
from fedreid_jax.training.files import checkpoint

TOLERANCE = 2e-5  # between placements, as a share of a leaf's largest value


class Finding(NamedTuple):
  """The result of one check.

  Attributes:
    check: the requirement that was checked.
    problem: description of the problem, '' if there is none.
    serious: whether a problem is a failure; otherwise it is a warning.
  """

  check: str
  problem: str = ''
  serious: bool = True


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


def traced_once(rounds: Rounds) -> str:
  """Checks that the second round compiles nothing."""
  before, after = rounds.traces
  return f'{after - before} traces after the first round' * (after > before)


def pure(rounds: Rounds) -> str:
  """Checks that the same start gives the same bits."""
  again = run(rounds.executor, rounds.variables, 1)
  return difference(rounds.first[:2], again[:2])


def finite(rounds: Rounds) -> str:
  """Checks that all states are finite after two rounds."""
  for path, leaf in _leaves(rounds.second[:2]):
    if not np.isfinite(leaf).all():
      return f'{path} is not finite'
  return ''


def placed(rounds: Rounds, config, clients, components: Components) -> str:
  """Checks that all clients at once on two devices give the same models.

  They are compared with the models of `rounds`, for which the same
  configuration trained one client after another on one device.
  """
  # Clients that are vmapped have other last bits, so that models are compared
  # with a tolerance.
  config.fraction = FRACTION
  config.execution.deterministic, config.execution.width = False, 0
  executor, variables, _ = make_executor(config, clients, components, 2)
  models, _, _ = run(executor, variables, 1)
  return difference(rounds.first[0], models, TOLERANCE)


def restored(rounds: Rounds, folder: Path) -> str:
  """Checks that a checkpoint in a folder restores all states."""
  server, states, _ = rounds.second
  saved = checkpoint.Checkpoints(folder)
  try:
    saved.save(2, server, states, {'a': [1]}, 12.5)
    if not saved.latest() == 2 == saved.best():
      return f'the latest step is {saved.latest()}, the best {saved.best()}'
    server_like, like = jax.tree.map(np.zeros_like, (server, states))
    back = saved.restore(2, server_like, like)
  finally:
    saved.close()
  if back[2] != {'a': [1]}:
    return f'the JSON part is {back[2]}'
  return difference((server, states), back[:2])


def difference(a: Any, b: Any, tolerance: float = 0.0) -> str:
  """Returns the first leaf that differs between two trees, or ''.

  Args:
    a: tree of arrays.
    b: tree of the same structure.
    tolerance: as a share of the largest value of a leaf, at least of 1; 0
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


def _leaves(tree: Any) -> list[tuple[str, np.ndarray]]:
  leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))
  return [
    (jax.tree_util.keystr(path), np.asarray(leaf)) for path, leaf in leaves
  ]


def check(name: str, beside: Sequence[str] = ()) -> Iterator[Finding]:
  """Yields the result of every check of a component, with default options.

  Args:
    name: of the component, built-in or a plug-in.
    beside: as for `toy_federation.method`.

  Raises:
    ConfigError: when there is no such component, or when the toy federation
      cannot run it.
  """
  schema.groups([] if name in _built_in() else [(plugins.COMPONENT, name)])
  module = importlib.import_module(
    plugins.full_name(name, plugins.COMPONENT, algorithms)
  )
  yield Finding('Options are declared', declared(module))
  made = module.make()
  problem = named(name, made)
  yield Finding('make returns a component of its name', problem)
  if problem:
    return
  yield Finding('the docstring states deviations', documented(module), False)
  config, clients = toy_config(), toy_clients()
  config.optim.lr = 0.005  # a large rate amplifies the last bit
  components = method(name, beside)
  try:
    rounds = run_twice(config, clients, components)
  except errors.FedReIDError:
    raise
  except Exception as error:  # A component is code and can raise anything.
    yield Finding('two rounds run', f'{type(error).__name__}: {error}')
    return
  yield Finding('two rounds run')
  checks: tuple[tuple[str, Callable[[Rounds], str]], ...] = (
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


@functools.cache
def _built_in() -> tuple[str, ...]:
  return tuple(plugins.available(algorithms))
