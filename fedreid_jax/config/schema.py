"""All fields of a configuration: their declarations and defaults.

A recipe starts from `default()`, applies a preset and makes the changes of its
paper. Fields are declared in `config.groups`; those of a component are declared
in the `Options` next to its `make`.
"""

import functools
from collections.abc import Sequence
from typing import Any

import ml_collections

from fedreid_jax import algorithms, errors
from fedreid_jax.config import declared, renamed
from fedreid_jax.core import options, plugins

ConfigDict = ml_collections.ConfigDict
GROUPS = 'fedreid_jax.config.groups'
TOP = 'Run'  # the class with the fields at the top level
CLASSES = (
  *('Data', 'Model', 'Local', 'Optim', 'Loss', 'Augment', 'Evaluation'),
  'Execution',
)


def groups(names: Sequence[str] = ()) -> dict[str, Any]:
  """Returns the declaration of every group; '' is the top level.

  Args:
    names: components of a configuration; the groups of plug-ins among them are
      included. The groups of built-in components are always included.

  Raises:
    ConfigError: if a component does not exist, or two have the same group.
  """
  return _groups(tuple(name for name in names if name not in _built_in()))


@functools.cache
def _groups(added: tuple[str, ...]) -> dict[str, Any]:
  found = {'': declared.read(GROUPS, TOP)}
  found |= {name.lower(): declared.read(GROUPS, name) for name in CLASSES}
  for component in (*_built_in(), *added):
    module = plugins.module_of(component, algorithms)
    if not declared.exists(module):
      raise errors.ConfigError(
        f'component {component!r} has no source file',
        'components',
        'install its package, or check its name',
      )
    group = plugins.group_of(component)
    if group in found or (group in _built_in() and component in added):
      raise errors.ConfigError(
        f'{component!r} and another component have the group {group!r}',
        'components',
        'rename the module',
      )
    if declared.has(module, 'Options'):
      found[group] = declared.read(module, 'Options')
  return found


@functools.cache
def _built_in() -> tuple[str, ...]:
  return tuple(plugins.available(algorithms))


def fields(names: Sequence[str] = ()) -> dict[str, options.Field]:
  """Returns all declarations of fields by full name, for example 'optim.lr'.

  Args:
    names: as for `groups`.
  """
  return {
    f'{group}.{field.name}' if group else field.name: field
    for group, declaration in groups(names).items()
    for field in options.fields(declaration)
  }


def components(config: Any) -> tuple[str, ...]:
  """Returns the names of a configuration's components.

  Raises:
    ConfigError: if a name of the first edition is used.
  """
  found = config.get('components', ())
  if not isinstance(found, tuple):
    return ()
  if new := renamed.value('components', found):
    raise errors.ConfigError(f'{found!r}', 'components', f'renamed to {new!r}')
  return tuple(name for name in found if isinstance(name, str))


def default() -> Any:
  """Returns all fields with their defaults."""
  config: Any = ConfigDict()
  _fill(config, groups())
  return config.lock()


def complete(config: Any) -> Any:
  """Adds the groups of the plug-ins in a configuration.

  Args:
    config: configuration that is changed and returned; existing fields keep
      their values.
  """
  missing = {
    name: declaration
    for name, declaration in groups(components(config)).items()
    if name not in config and name
  }
  with config.unlocked():
    _fill(config, missing)
  return config


def _fill(config: Any, found: dict[str, Any]) -> None:
  for name, declaration in found.items():
    values = {f.name: f.default for f in options.fields(declaration)}
    if name:
      config[name] = ConfigDict(values)
    else:
      config.update(values)
