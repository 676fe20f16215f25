"""Validation of a configuration: fields, values, and combinations of fields.

Combinations are checked with the components of the method. No backend of JAX is
started.
"""

from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import parsing, rules, schema


def validate(config: Any) -> Any:
  """Returns the configuration if it is valid.

  Raises:
    ConfigError: if it is not; the message contains the problem, the field and
      the remedy.
  """
  found = parsing.flatten(config)
  known = schema.fields(schema.plug_ins(config))
  for name in sorted(found.keys() | known.keys()):
    if name not in known:
      hint = parsing.hint(name, known)
      raise errors.ConfigError('unknown field', name, hint)
    if name not in found:
      raise errors.ConfigError(
        'field is missing',
        name,
        'create the configuration with schema.default()',
      )
    parsing.check(name, known[name], found[name])
  for wrong, where, what, fix in rules.rules(config):
    if wrong:
      raise errors.ConfigError(what, where, fix)
  return config
