"""Plug-ins: components, networks and data sources outside the package.

A plug-in is named by its module (`'mypkg.my_rule'`) or by an entry point whose
value is the module. Its hyper-parameters are the group of the configuration
that has the name's last part. This module imports neither JAX nor any plug-in.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedreid_jax import errors


class Plugin(NamedTuple):
  """Marks a field whose values may name plug-ins, and says of which kind.

  Attributes:
    group: of the entry points.
    field: full name of the field of a configuration.
    noun: for messages.
    function: that a module of this kind has.
  """

  group: str
  field: str
  noun: str
  function: str


COMPONENT = Plugin('fedreid_jax.components', 'components', 'component', 'make')
NETWORK = Plugin('fedreid_jax.networks', 'model.name', 'network', 'make')
SOURCE = Plugin('fedreid_jax.sources', 'data.source', 'data source', 'load')


def available(package: ModuleType) -> list[str]:
  """Returns the names of the modules of a package, sorted."""
  return sorted(
    m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg
  )


@functools.cache
def entry_points(plugin: Plugin) -> dict[str, str]:
  """Returns the module of every installed plug-in, by its entry point."""
  return {
    one.name: one.module
    for one in importlib.metadata.entry_points(group=plugin.group)
  }


def module_of(name: str, plugin: Plugin, built_in: Collection[str]) -> str:
  """Returns the full name of the module of a plug-in.

  Args:
    name: as a configuration has it.
    plugin: its kind.
    built_in: names of the package, for the message.

  Raises:
    ConfigError: when the name is neither dotted nor an entry point.
  """
  if name in entry_points(plugin):
    return entry_points(plugin)[name]
  if '.' in name and all(part.isidentifier() for part in name.split('.')):
    return name
  raise errors.ConfigError(
    f'unknown {plugin.noun} {name!r}',
    plugin.field,
    errors.one_of(
      name,
      (*built_in, *sorted(entry_points(plugin))),
      "a module outside the package as 'mypkg.my_module'",
    ),
  )


def component_module(name: str, package: ModuleType) -> str:
  """Returns the full name of the module of a component.

  Args:
    name: as a configuration has it.
    package: of the built-in components.

  Raises:
    ConfigError: if there is no component of that name.
  """
  built_in = available(package)
  if name in built_in:
    return f'{package.__name__}.{name}'
  return module_of(name, COMPONENT, built_in)


def folders(module: str) -> list[Path]:
  """Returns the folders or the file of the package that a module is in.

  Args:
    module: full name; its package is found, and the module is not imported.
  """
  spec = importlib.util.find_spec(module.partition('.')[0])
  if spec is None:  # `call` says so
    return []
  places = spec.submodule_search_locations or [spec.origin or '']
  return [Path(place) for place in places if place]


def call(
  module: str, plugin: Plugin, options: Mapping[str, Any], *args: Any
) -> Any:
  """Imports a module and calls the function that its kind has.

  Args:
    module: full name.
    plugin: kind of the module.
    options: hyper-parameters. The function has them as its last argument, an
      instance of `Options`, if the module declares that class.
    *args: of the function.

  Raises:
    ConfigError: when the module cannot be found or lacks the function, or for
      hyper-parameters that it does not have or cannot have.
  """
  try:
    found = importlib.import_module(module)
  except ModuleNotFoundError as error:
    if error.name is None or not f'{module}.'.startswith(f'{error.name}.'):
      raise
    raise errors.ConfigError(
      f'no module {module!r}', plugin.field, 'install its package'
    ) from error
  function = getattr(found, plugin.function, None)
  if function is None:
    raise errors.ConfigError(
      f'{module} has no function {plugin.function!r}',
      plugin.field,
      f'name a module that is a {plugin.noun}',
    )
  if hasattr(found, 'Options'):
    return function(*args, found.Options(**options))
  return function(*args)


def group_of(name: str) -> str:
  """Returns the group of a configuration that has a plug-in's fields."""
  return name.rpartition('.')[2]
