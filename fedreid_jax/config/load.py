"""Loading of validated configurations of recipes and of saved runs."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import (
  parsing,
  recipes,
  saved_config,
  schema,
  validation,
)


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
    recipe: `RECIPE[:PRESET[,key=value...]]`, as on the command line. RECIPE is
      the name of a recipe of this package ('dfh') or the path of a Python file
      with `get_config`, which is executed.
    overrides: new values of fields by full name, for example 'optim.lr'.
    **fields: new values of fields without a section, for example `rounds`; a
      mapping changes several fields of a section: `optim={'lr': 0.02}`.

  Returns:
    A validated `ConfigDict`. Its fields can be changed, but not added.

  Raises:
    ConfigError: if a recipe, preset or field does not exist, or a value is not
      valid.
  """
  path, colon, arguments = os.fspath(recipe).partition(':')
  if recipes.find(path) is None:
    raise recipes.missing(path)
  config = recipes.recipe(f'{path}{colon}{arguments}', '')
  named = parsing.flatten(dict(overrides or {}))
  own = parsing.flatten(fields)
  for name in named.keys() & own.keys():
    raise errors.ConfigError('the field has two values', name, 'give one value')
  return change(config.lock(), named | own)


def load_saved(workdir: Path, changes: Sequence[str] = ()) -> Any:
  """Reads the configuration of a run from JSON, without executing its recipe.

  Args:
    workdir: work directory of the run.
    changes: KEY=VALUE pairs of fields to change.

  Raises:
    IntegrityError: if the directory is not a work directory, or the file is
      damaged.
    ConfigError: if a changed field does not exist, or a value is not valid.
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
  return validation.validate(saved_config.from_json(saved, changes, str(path)))


def change(config: Any, values: Mapping[str, Any]) -> Any:
  """Sets fields of a configuration and validates it.

  Args:
    config: configuration, changed in place.
    values: values by full names of fields; lists become tuples.

  Raises:
    ConfigError: if a field does not exist, or a value is not valid.
  """
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
  return validation.validate(config)
