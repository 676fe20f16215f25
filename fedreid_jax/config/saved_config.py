"""Configurations of saved runs."""

import json
from collections.abc import Sequence
from typing import Any

from fedreid_jax import algorithms, errors
from fedreid_jax.config import parsing, renamed, schema
from fedreid_jax.core import plugins
from fedreid_jax.core.options import Field
from fedreid_jax.data.synthetic import versions

# Fields that earlier runs of this edition have not saved; their defaults are
# what those runs did.
LATER = (
  *('data.colour_as', 'data.held_out', 'evaluation.validation'),
  'execution.stack_budget_mb',
  *('cohort', 'cohort_max', 'model.norm'),
  *('data.poison', 'data.poisoned', 'data.trigger_share'),
  *('optim.schedule_rounds', 'evaluation.extra'),
)
# Fields that earlier runs have saved, and that changed no result.
GONE = ('execution.reduction',)
# Fields that earlier runs have not saved, and the values that they had then
# where these are not the defaults.
BEFORE = {'privacy.secret': 'seed'}


LATER_GROUP = 'availability.'
_SOURCE = plugins.SOURCE.field


def identity(config: Any) -> Any:
  """Returns `schema.identity` with the version of the synthetic world."""
  # The name without a version means the newest one, which may change.
  kept = schema.identity(config)
  kept.data.source = versions.resolve(kept.data.source)
  return kept


def to_json(config: Any) -> dict[str, Any]:
  """Returns a configuration as the object in config.json."""
  return json.loads(identity(config).to_json_best_effort())


def from_json(saved: dict[str, Any], changes: Sequence[str], where: str) -> Any:
  """Returns the configuration of a saved run after changes of fields.

  A run may lack the fields `LATER`, those of `LATER_GROUP` and the options of
  methods that did not exist then. No run has the fields of `schema.reporting`.

  Raises:
    IntegrityError: if a field is missing or unknown, or its value is not
      allowed.
    ConfigError: if a changed field does not exist or its value is not allowed.
  """
  flat = {
    name: parsing.as_tuples(value)
    for name, value in parsing.flatten(saved).items()
    if name not in GONE
  }
  old = sorted(flat.keys() & renamed.FIELDS.keys())
  if old:
    raise errors.IntegrityError(
      f'has {old[0]}, a field of version 0.1',
      where,
      'train again, or evaluate the run with version 0.2',
    )
  config = schema.default()
  for name in schema.PLUGGED:
    if name in flat:
      _restore(config, name, flat, where)
  known, aside = parsing.declarations(config), schema.reporting()
  for what, keys in (
    (
      'has no',
      _missing(known.keys() - flat.keys() - aside, flat),
    ),
    ('has an unknown', flat.keys() - known.keys()),
  ):
    if keys:
      raise errors.IntegrityError(
        f'{what} {min(keys)}',
        where,
        'restore the file from a copy, or give --config',
      )
  # A run has the name of its version of the synthetic world; a name without a
  # version means the first one.
  if isinstance(source := flat.get(_SOURCE), str):
    flat[_SOURCE] = versions.of_file(source)
  flat = BEFORE | flat
  for name in flat:
    _restore(config, name, flat, where, known)
  if 'data.colour_as' not in flat:
    # Nothing was refused then: what the run did to colours was allowed.
    parsing.note_written(config, 'data.channels')
    parsing.note_written(config, 'data.invert')
  return parsing.change(config, changes, '--set')


def _missing(absent: set[str], flat: dict[str, Any]) -> set[str]:
  """Returns the absent fields that every run must have saved."""
  saved = {name.partition('.')[0] for name in flat}
  unused = {*plugins.available(algorithms)} - saved
  unused -= {*flat.get('components', ())}
  return {
    name
    for name in absent
    if name not in (*LATER, *BEFORE)
    and not name.startswith(LATER_GROUP)
    and name.partition('.')[0] not in unused
  }


def _restore(
  config: Any,
  name: str,
  flat: dict[str, Any],
  where: str,
  known: dict[str, Field] | None = None,
) -> None:
  try:
    # A plug-in has fields of its own, so they change when one is restored.
    known = known or parsing.declarations(config)
    parsing.assign(config, name, known[name], flat[name])
  except errors.ConfigError as error:
    raise errors.IntegrityError(
      f'{error.where}: {error.what}', where, 'restore the file from a copy'
    ) from error
