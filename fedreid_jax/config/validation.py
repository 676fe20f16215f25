"""What a configuration may hold: fields, their values, and fields together.

It imports no JAX, so that a wrong configuration is an error within a second.
"""

from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import parsing, rules, schema


def validate(config: Any) -> Any:
  """Returns the configuration if every field can be run.

  Raises:
    ConfigError: naming the field, what it holds and what it may hold.
  """
  found = parsing.flatten(config)
  known = schema.fields(schema.plug_ins(config))
  for name in sorted(found.keys() | known.keys()):
    if name not in known:
      hint = parsing.hint(name, known)
      raise errors.ConfigError('unknown field', name, hint)
    if name not in found:
      raise errors.ConfigError('field is missing', name, 'start from default()')
    parsing.check(name, known[name], found[name])
  for wrong, where, what, fix in rules.rules(config):
    if wrong:
      raise errors.ConfigError(what, where, fix)
  return config
