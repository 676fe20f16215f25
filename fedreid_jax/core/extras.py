"""Packages that an extra of this package installs, imported where needed."""

import importlib
from types import ModuleType

from fedreid_jax import errors


def command(extra: str) -> str:
  """Returns the command that installs an extra."""
  return f"pip install 'fedreid_jax[{extra}]'"


def load(name: str, needed_by: str, remedy: str) -> ModuleType:
  """Returns an optional package.

  Args:
    name: of the package.
    needed_by: command or flag that needs it, for the message.
    remedy: how to install it.

  Raises:
    ConfigError: if it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise errors.ConfigError(f'no {name}: {error}', needed_by, remedy) from (
      error
    )
