"""Packages that only the exchange of models needs."""

import importlib
from types import ModuleType

from fedreid_jax import errors

EXTRA = "pip install 'fedreid_jax[export]'"


def load(name: str, needed_by: str, remedy: str = EXTRA) -> ModuleType:
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
