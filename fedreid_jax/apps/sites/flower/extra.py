"""Imports Flower, which only a federation of real sites needs."""

from types import ModuleType

from fedreid_jax.core import extras


def flower(name: str) -> ModuleType:
  """Returns a module of Flower.

  Args:
    name: of the module, such as 'flwr.app'.

  Raises:
    ConfigError: naming the extra, if Flower is not installed.
  """
  return extras.load(name, 'real sites', extras.command('sites'))
