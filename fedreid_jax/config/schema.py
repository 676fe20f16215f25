"""All fields of a configuration: their declarations and defaults.

A recipe starts from `default()`, applies a preset and makes the changes of its
paper. Fields are declared beside the code that reads them (`configuration`);
those of a component are declared in the `Options` next to its `make`.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_collections

from fedreid_jax import algorithms, errors
from fedreid_jax.core import options, plugins
from fedreid_jax.core.options import Mark
from fedreid_jax.core.plugins import Plugin
from fedreid_jax.evaluation import evaluators
from fedreid_jax.models import backbones

if TYPE_CHECKING:  # the import of all parts of a method takes a second
  from fedreid_jax.config.configuration import Config

ConfigDict = ml_collections.ConfigDict
Named = tuple[Plugin, str]  # a plug-in: its kind and its name
KINDS = (
  *(plugins.COMPONENT, plugins.NETWORK),
  *(plugins.SOURCE, plugins.EVALUATOR),
)
PLUGGED = tuple(plugin.field for plugin in KINDS)


def groups(named: Sequence[Named] = ()) -> dict[str, Any]:
  """The declaration of every group; '' is the top level.

  The groups of `named` plug-ins and evaluators follow those that every
  configuration has.

  Raises:
    ConfigError: for a plug-in that does not exist, and for two with one group.
  """
  return _groups(tuple(dict.fromkeys(named)))


@functools.cache
def _groups(named: tuple[Named, ...]) -> dict[str, Any]:
  # Imported here, because the import of all parts of a method takes a second.
  from fedreid_jax.config import configuration

  found: dict[str, Any] = {'': configuration.Run, **configuration.GROUPS}
  for package in (algorithms, backbones):
    for name in plugins.available(package):
      module = importlib.import_module(f'{package.__name__}.{name}')
      if hasattr(module, 'Options'):
        found[name] = module.Options
  taken = found.keys() | {*_built_in()}
  for plugin, name in named:
    if plugin == plugins.EVALUATOR:
      module = plugins.full_name(name, plugin, evaluators)
    else:
      module = plugins.module_of(name, plugin, _choices(plugin))
    imported = plugins.imported(module, plugin)
    group = plugins.group_of(name)
    if group in taken:
      raise errors.ConfigError(
        f'{name!r} and another part have the group {group!r}',
        plugin.field,
        'rename the module',
      )
    taken |= {group}
    if hasattr(imported, 'Options'):
      found[group] = imported.Options
  return found


@functools.cache
def _built_in() -> tuple[str, ...]:
  return tuple(plugins.available(algorithms))


@functools.cache
def _choices(plugin: Plugin) -> tuple[str, ...]:
  """The names of the package that a field of plug-ins may hold."""
  if plugin == plugins.COMPONENT:
    return _built_in()
  return fields()[plugin.field].choices()


def fields(named: Sequence[Named] = ()) -> dict[str, options.Field]:
  """Returns the declaration of every field by its full name, as 'optim.lr'."""
  return {
    f'{group}.{field.name}' if group else field.name: field
    for group, declaration in groups(named).items()
    for field in options.fields(declaration)
  }


def editable(config: 'Config | ConfigDict') -> Any:
  """Returns the ConfigDict with the values of a configuration, locked.

  A ConfigDict is returned unchanged.
  """
  if not dataclasses.is_dataclass(config):
    return config
  values: dict[str, Any] = {**vars(config)}
  groups = values.pop('options')
  for name, value in (*values.items(), *groups.items()):
    values[name] = {**vars(value)} if dataclasses.is_dataclass(value) else value
  return ConfigDict(values).lock()


def reporting() -> frozenset[str]:
  """Returns the names of the fields that change no result of a run."""
  return frozenset(marked(Mark.REPORTING))


def marked(mark: Mark, named: Sequence[Named] = ()) -> list[str]:
  """Returns the full names of the fields with a mark, in order."""
  return [name for name, field in fields(named).items() if mark in field.marks]


def identity(config: 'Config | ConfigDict') -> Any:
  """Copies a configuration without the fields of `reporting`.

  Configurations with equal copies describe the same run. Earlier runs have no
  options of evaluators and no fields of `Mark.LATER`: those with their defaults
  are left out.
  """
  kept = editable(config).copy_and_resolve_references()
  with kept.unlocked():
    for name in reporting():
      group, _, field = name.rpartition('.')
      values = kept[group] if group else kept
      if field in values:
        del values[field]
    for name, field in fields(evaluators_of_package()).items():
      group, _, own = name.rpartition('.')
      if group in kept and group not in groups():
        if kept[group].get(own) == field.default:
          del kept[group][own]
        if not len(kept[group]):
          del kept[group]
    for name, value in later().items():
      group, _, field = name.rpartition('.')
      values = kept[group] if group else kept
      if field in values and values[field] == value:
        del values[field]
  return kept


def later() -> dict[str, Any]:
  """Returns the defaults of the fields that `identity` leaves out with them."""
  known = fields()
  return {name: known[name].default for name in marked(Mark.LATER)}


def in_use(config: 'Config | ConfigDict', mark: Mark) -> list[str]:
  """The full names of the fields with a mark that have an effect.

  Their values are neither zero nor empty, and the component of such a field is
  listed, or the network has its name. A saved configuration may lack fields.
  """
  given = editable(config)
  own = {plugins.group_of(name) for name in given.get('components', ())}
  own |= {given.get('model', {}).get('name')}
  idle = {*_built_in(), *plugins.available(backbones)} - own
  found = []
  for name in marked(mark, named(given)):
    group, _, field = name.rpartition('.')
    values = given.get(group, {}) if group else given
    if group not in idle and values.get(field):
      found.append(name)
  return found


def plug_ins(config: 'Config | ConfigDict') -> tuple[Named, ...]:
  """The plug-ins that a configuration names, with their kinds."""
  return tuple(
    (plugin, name)
    for plugin, name in named(config)
    if name not in _choices(plugin)
  )


def evaluators_of_package() -> tuple[Named, ...]:
  """The evaluators whose groups a configuration has if it names them."""
  names = plugins.available(evaluators)
  return tuple((plugins.EVALUATOR, name) for name in names)


def named(config: 'Config | ConfigDict') -> tuple[Named, ...]:
  """The parts that add a group to a configuration by being named.

  They are plug-ins and evaluators, with their kinds.
  """
  found = []
  for plugin in KINDS:
    value: Any = editable(config)
    for part in plugin.field.split('.'):
      value = value.get(part, '') if hasattr(value, 'get') else ''
    # Values of a wrong type are left out; the check of their field refuses
    # them.
    names = value if isinstance(value, tuple) else (value,)
    own = () if plugin == plugins.EVALUATOR else _choices(plugin)
    found += [
      (plugin, name)
      for name in names
      if isinstance(name, str) and name and name not in own
    ]
  return tuple(found)


def check_plug_ins(flat: Mapping[str, Any], where: str) -> None:
  """Refuses plug-ins in the fields of a file that are known only from there.

  Raises:
    ConfigError: as `plugins.check_saved`.
  """
  for plugin in KINDS:
    value = flat.get(plugin.field)
    names = value if isinstance(value, (list, tuple)) else [value]
    for name in names:
      if isinstance(name, str) and name and name not in _choices(plugin):
        plugins.check_saved(name, plugin, where)


def default() -> Any:
  """Returns all fields with their defaults."""
  config: Any = ConfigDict()
  _fill(config, groups())
  return config.lock()


def complete(config: ConfigDict) -> Any:
  """Adds the groups of `named` in place, and removes those of evaluators.

  Evaluators of the package that are named no more have no group.
  """
  declared = groups(named(config))
  missing = {n: x for n, x in declared.items() if n and n not in config}
  own = [plugins.group_of(name) for _, name in evaluators_of_package()]
  left = [name for name in own if name in config and name not in declared]
  with config.unlocked():
    _fill(config, missing)
    for name in left:
      del config[name]
  return config


def _fill(config: Any, found: dict[str, Any]) -> None:
  for name, declaration in found.items():
    values = {f.name: f.default for f in options.fields(declaration)}
    if name:
      config[name] = ConfigDict(values)
    else:
      config.update(values)
