"""Plug-ins: components, networks, data sources and evaluators from elsewhere.

A plug-in is named by its module (`'mypkg.my_rule'`) or by an entry point whose
value is the module. Its hyper-parameters are a group of the configuration with
the last part of the plug-in's name. The module is imported when its fields are
needed, as are optional packages, which extras install.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import site
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedreid_jax import errors


class Plugin(NamedTuple):
  """A kind of plug-in; it marks a field whose values may name plug-ins.

  Attributes:
    group: group of the entry points.
    field: full name of the field of a configuration that names the plug-ins.
    noun: name of the kind in messages.
    function: name of the function that a module of this kind has.
  """

  group: str
  field: str
  noun: str
  function: str


COMPONENT = Plugin('fedreid_jax.components', 'components', 'component', 'make')
NETWORK = Plugin('fedreid_jax.networks', 'model.name', 'network', 'make')
SOURCE = Plugin('fedreid_jax.sources', 'data.source', 'data source', 'load')
EVALUATOR = Plugin(
  'fedreid_jax.evaluators', 'evaluation.extra', 'evaluator', 'evaluate'
)


# Names of plug-ins that the user lets saved runs name.
_allowed: set[str] = set()


def available(package: ModuleType) -> list[str]:
  """Returns the names of the modules of a package, sorted."""
  return list(_modules(tuple(package.__path__)))


# A study validates thousands of configurations, each of which asks for names.
@functools.cache
def _modules(folders: tuple[str, ...]) -> tuple[str, ...]:
  return tuple(
    sorted(m.name for m in pkgutil.iter_modules(folders) if not m.ispkg)
  )


@functools.cache
def entry_points(plugin: Plugin) -> dict[str, str]:
  """Returns the modules of the installed plug-ins of a kind, by entry point."""
  return {
    one.name: one.module
    for one in importlib.metadata.entry_points(group=plugin.group)
  }


def module_of(name: str, plugin: Plugin, built_in: Collection[str]) -> str:
  """Returns the full name of the module of a plug-in.

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


def allow(name: str) -> None:
  """Lets saved runs name a plug-in, for the rest of the process."""
  _allowed.add(name)


def check_saved(name: str, plugin: Plugin, where: str) -> None:
  """Refuses a plug-in of a file unless it is known apart from the file.

  Its module is code, and a file of somebody else may name any module that can
  be found, such as one in the same folder. Known are installed entry points,
  modules that this process has imported, and names that the user has given.

  Raises:
    ConfigError: for a plug-in that is none of these.
  """
  installed = _installed(plugin)
  module = entry_points(plugin).get(name, name)
  if module in {*installed.values(), *sys.modules} or name in _allowed:
    return
  raise errors.ConfigError(
    f'{plugin.field} names the module {module!r}, which is not installed as a '
    'plug-in, and importing it runs its code',
    where,
    f'if you trust it, give --plugin={name}, or import it first in Python',
  )


@functools.cache
def _installed(plugin: Plugin) -> dict[str, str]:
  """The entry points of distributions in the folders of installed packages.

  Other folders on the path may belong to anybody, such as the current one.
  """
  folders = {*site.getsitepackages(), site.getusersitepackages()}
  places = {Path(folder).resolve() for folder in folders}
  return {
    one.name: one.module
    for one in importlib.metadata.entry_points(group=plugin.group)
    if one.dist and Path(str(one.dist.locate_file(''))).resolve() in places
  }


def full_name(name: str, plugin: Plugin, package: ModuleType) -> str:
  """Returns the full name of a module of the package or of a plug-in.

  Args:
    package: package of the built-in modules of this kind.

  Raises:
    ConfigError: if there is no module of that name.
  """
  built_in = available(package)
  if name in built_in:
    return f'{package.__name__}.{name}'
  return module_of(name, plugin, built_in)


def folders(module: str) -> list[Path]:
  """Returns the folders, or the single file, of a module's top-level package.

  Args:
    module: full name of the module, which is not imported.
  """
  spec = importlib.util.find_spec(module.partition('.')[0])
  # `imported` raises the error for users when the module is needed.
  if spec is None:
    return []
  places = spec.submodule_search_locations or [spec.origin or '']
  return [Path(place) for place in places if place]


def imported(module: str, plugin: Plugin) -> ModuleType:
  """Imports a module and checks that it has the function of its kind.

  Raises:
    ConfigError: when the module cannot be found or imported, or lacks the
      function of its kind.
  """
  try:
    found = importlib.import_module(module)
  except errors.FedReIDError:
    raise
  except Exception as error:  # a module is code and can raise any error
    # The module itself or a parent is missing. A module that lacks one of its
    # imports is there, and is reported as one that cannot be imported.
    name = getattr(error, 'name', None)
    if isinstance(error, ModuleNotFoundError) and (
      name and f'{module}.'.startswith(f'{name}.')
    ):
      raise errors.ConfigError(
        f'no module {module!r}', plugin.field, 'install its package'
      ) from error
    raise errors.ConfigError(
      f'{module} cannot be imported: {type(error).__name__}: {error}',
      plugin.field,
      'fix the module',
    ) from error
  if not hasattr(found, plugin.function):
    raise errors.ConfigError(
      f'{module} has no function {plugin.function!r}',
      plugin.field,
      f'name a module with this function, which makes it a {plugin.noun}',
    )
  return found


def options_of(found: ModuleType, options: Mapping[str, Any]) -> Any:
  """Returns the `Options` of a module with these values, None without a class.

  Raises:
    ConfigError: if a hyper-parameter does not exist or has an invalid value.
  """
  return found.Options(**options) if hasattr(found, 'Options') else None


def bound(found: ModuleType, plugin: Plugin, own: Any) -> Callable[..., Any]:
  """Returns the function of a module, with its hyper-parameters bound.

  Args:
    own: an instance of the module's `Options`, which the function receives as
      its last argument, or None.
  """
  function = getattr(found, plugin.function)
  return function if own is None else lambda *args: function(*args, own)


def call(
  module: str, plugin: Plugin, options: Mapping[str, Any], *args: Any
) -> Any:
  """Calls the function of a module by its full name.

  `imported` and `options_of` describe the other arguments and the errors.
  """
  found = imported(module, plugin)
  return bound(found, plugin, options_of(found, options))(*args)


def group_of(name: str) -> str:
  """Returns the name of the configuration group with a plug-in's fields."""
  return name.rpartition('.')[2]


def install_command(extra: str) -> str:
  """Returns the shell command that installs an extra of this package."""
  return f"pip install 'fedreid_jax[{extra}]'"


def load_extra(name: str, needed_by: str, remedy: str) -> ModuleType:
  """Imports an optional package.

  Args:
    needed_by: command or flag that needs it, for the message.

  Raises:
    ConfigError: if the package cannot be imported.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise errors.ConfigError(f'no {name}: {error}', needed_by, remedy) from (
      error
    )
