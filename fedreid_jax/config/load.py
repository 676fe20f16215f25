"""Loading of configurations: of recipes, and of saved runs in JSON."""

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ml_collections import ConfigDict

from fedreid_jax import algorithms, errors
from fedreid_jax.config import parsing, recipes, schema
from fedreid_jax.core import plugins
from fedreid_jax.core.options import Field
from fedreid_jax.data.synthetic import versions

if TYPE_CHECKING:  # the import of all parts of a method takes a second
  from fedreid_jax.config.configuration import Config

# Earlier runs have the published network beside the components; the component
# of the same name changes the network now.
VARIANT, PLAIN = 'model.variant', 'plain'
ENTROPY = '_entropy'  # the ending of SNR's network with classifiers
_SOURCE = plugins.SOURCE.field


def load_config(
  recipe: str | os.PathLike[str],
  overrides: Mapping[str, Any] | None = None,
  **fields: Any,
) -> Any:
  """Returns the configuration of a recipe with some fields changed.

  >>> import fedreid_jax as fr
  >>> config = fr.load_config('dfh:smoke', {'optim.lr': 0.02}, rounds=5)
  >>> config.name, config.optim.lr, config.rounds
  ('dfh', 0.02, 5)
  >>> fr.load_config('dfh:smoke', round=5)
  Traceback (most recent call last):
  fedreid_jax.errors.ConfigError: unknown field — round — did you mean rounds?

  Args:
    recipe: `RECIPE[+COMPONENT...][:PRESET[,key=value...]]`, as on the command
      line. RECIPE is the name of a recipe of this package ('dfh') or the path
      of a Python file with `get_config`, which is executed; components are
      added to those of the recipe.
    overrides: new values of fields by full name, for example 'optim.lr'.
    **fields: new values of fields without a section, for example `rounds`; a
      mapping changes several fields of a section: `optim={'lr': 0.02}`.

  Returns:
    A validated `ConfigDict`. Its fields can be changed, but not added.

  Raises:
    ConfigError: if a recipe, preset or field does not exist, or a value is not
      valid.
  """
  config = recipes.recipe(os.fspath(recipe))
  named = parsing.flatten(dict(overrides or {}))
  own = parsing.flatten(fields)
  for name in named.keys() & own.keys():
    raise errors.ConfigError('the field has two values', name, 'give one value')
  return change(config.lock(), named | own)


def load_saved(workdir: Path, changes: Sequence[str] = ()) -> 'Config':
  """Reads the configuration of a run from JSON, without executing its recipe.

  Args:
    changes: KEY=VALUE pairs of fields to change.

  Raises:
    IntegrityError: the directory is no work directory, or the file is damaged.
    ConfigError: if a changed field does not exist, a value is not valid, or a
      plug-in is neither installed nor imported.
  """
  path = workdir / 'config.json'
  try:
    saved = json.loads(path.read_text())
  except (OSError, ValueError, RecursionError) as error:
    raise errors.IntegrityError(
      'no readable configuration', str(path), 'give the --workdir of a run'
    ) from error
  if not isinstance(saved, dict):
    raise errors.IntegrityError(
      'no configuration', str(path), 'give the --workdir of a run'
    )
  check_plug_ins(saved, path)
  return _validated(from_json(saved, changes, str(path)))


def check_plug_ins(saved: Mapping[str, Any], path: Path) -> None:
  """Refuses a saved configuration whose plug-ins nobody else has named.

  Raises:
    ConfigError: as `plugins.check_saved`.
  """
  schema.check_plug_ins(parsing.flatten(dict(saved)), str(path))


def _validated(config: ConfigDict) -> 'Config':
  # The import of JAX takes a second, and not every command needs it.
  from fedreid_jax.config import validation

  return validation.validate(config)


def change(config: ConfigDict, values: Mapping[str, Any]) -> Any:
  """Sets fields in place by full names, lists as tuples, and validates them.

  Raises:
    ConfigError: if a field does not exist, or a value is not valid.
  """
  _set(config, values)
  _validated(config)
  return config


def with_fields(config: 'Config', values: Mapping[str, Any]) -> 'Config':
  """Returns a configuration with some fields changed, as `change`."""
  made = schema.editable(config)
  _set(made, values)
  return _validated(made)


def _set(config: ConfigDict, values: Mapping[str, Any]) -> None:
  # Names of plug-ins are set first, because other fields belong to plug-ins.
  for name in sorted(values, key=lambda one: one not in schema.PLUGGED):
    known, value = parsing.flatten(schema.complete(config)), values[name]
    if name not in known:
      hint = parsing.hint(name, known)
      raise errors.ConfigError('unknown field', name, hint)
    try:
      config.update_from_flattened_dict({name: parsing.as_tuples(value)})
      parsing.note_written(config, name)
    except (TypeError, ValueError, OverflowError) as error:
      raise errors.ConfigError(
        f'{value!r}: {error}', name, 'give a value of its type'
      ) from error
  schema.complete(config)


def identity(config: 'Config | ConfigDict') -> Any:
  """Returns `schema.identity` with the version of the synthetic world."""
  # The name without a version means the newest one, which may change.
  kept = schema.identity(config)
  kept.data.source = versions.resolve(kept.data.source)
  return kept


def to_json(config: 'Config | ConfigDict') -> dict[str, Any]:
  """Returns a configuration as the object in config.json."""
  return json.loads(identity(config).to_json_best_effort())


def from_json(saved: dict[str, Any], changes: Sequence[str], where: str) -> Any:
  """Returns the configuration of a saved run after changes of fields.

  A field that the run lacks has its default, or the value `options.Earlier`:
  runs from before the field lack it. The digest with a checkpoint differs if a
  file has lost a field.

  Raises:
    IntegrityError: a field is unknown or has a forbidden value.
    ConfigError: if a changed field does not exist or its value is not allowed.
  """
  flat = {
    name: parsing.as_tuples(value)
    for name, value in parsing.flatten(saved).items()
    if name == VARIANT or name not in parsing.REMOVED
  }
  _add_component_of_variant(flat, where)
  config = schema.default()
  for name in schema.PLUGGED:
    if name in flat:
      _restore(config, name, flat, where)
  known = parsing.declarations(config)
  if unknown := flat.keys() - known.keys():
    raise errors.IntegrityError(
      f'has an unknown {min(unknown)}',
      where,
      'restore the file from a copy, or give --config',
    )
  # A run has the name of its version of the synthetic world; a name without a
  # version means the first one.
  if isinstance(source := flat.get(_SOURCE), str):
    flat[_SOURCE] = versions.of_file(source)
  flat = {
    name: field.earlier.value for name, field in known.items() if field.earlier
  } | flat
  for name in flat:
    _restore(config, name, flat, where, known)
  if 'data.colour_as' not in flat:
    # Nothing was refused then: what the run did to colours was allowed.
    parsing.note_written(config, 'data.channels')
    parsing.note_written(config, 'data.invert')
  parsing.check_once(changes, '--set')
  return parsing.change(config, changes, '--set')


def _add_component_of_variant(flat: dict[str, Any], where: str) -> None:
  """Replaces the field `VARIANT` of a run by its component, in place."""
  variant, components = flat.get(VARIANT, PLAIN), flat.get('components')
  if not (isinstance(variant, str) and isinstance(components, tuple)):
    return
  name = variant.removesuffix(ENTROPY)
  if name not in (PLAIN, *plugins.available(algorithms)):
    return
  flat.pop(VARIANT, None)
  if variant.endswith(ENTROPY):
    flat[f'{name}.loss'] = 'entropy'
  if name in (PLAIN, *components):
    return
  made = importlib.import_module(f'{algorithms.__name__}.{name}').make()
  if made.client or made.server:
    raise errors.IntegrityError(
      f'has the network of {name} without its component, whose hooks the run '
      'did not have',
      where,
      'train again',
    )
  flat['components'] = (*components, name)


def _restore(
  config: Any,
  name: str,
  flat: dict[str, Any],
  where: str,
  known: Mapping[str, Field] | None = None,
) -> None:
  try:
    # A plug-in has fields of its own, so they change when one is restored.
    known = known or parsing.declarations(config)
    parsing.assign(config, name, known[name], flat[name])
  except errors.ConfigError as error:
    raise errors.IntegrityError(
      f'{error.where}: {error.what}', where, 'restore the file from a copy'
    ) from error
