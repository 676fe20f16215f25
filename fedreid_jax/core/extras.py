"""Optional packages, which are installed by extras and imported on demand."""

import importlib
from types import ModuleType

from fedreid_jax import errors


def command(extra: str) -> str:
  """Returns the shell command that installs an extra of this package."""
  return f"pip install 'fedreid_jax[{extra}]'"


def load(name: str, needed_by: str, remedy: str) -> ModuleType:
  """Imports an optional package.

  Args:
    name: module name of the package.
    needed_by: command or flag that needs it, for the message.
    remedy: how to install it.

  Raises:
    ConfigError: if the package cannot be imported.
  """
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise errors.ConfigError(f'no {name}: {error}', needed_by, remedy) from (
      error
    )
