"""Built-in components and plug-ins by their names.

The name of a plug-in is its module (`'mypkg.my_rule'`) or an entry point of the
group `fedreid_jax.components`, whose value is the module. This module imports
neither JAX nor any component.
"""

import functools
import importlib.metadata
import pkgutil
from types import ModuleType

from fedreid_jax import errors

ENTRY_POINTS = 'fedreid_jax.components'


def available(package: ModuleType) -> list[str]:
  """Returns the names of the modules of a package, sorted."""
  return sorted(
    m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg
  )


@functools.cache
def entry_points() -> dict[str, str]:
  """Returns the module of every installed plug-in by entry point."""
  return {
    one.name: one.module
    for one in importlib.metadata.entry_points(group=ENTRY_POINTS)
  }


def module_of(component: str, package: ModuleType) -> str:
  """Returns the full name of the module of a component.

  Args:
    component: name in the configuration.
    package: package of the built-in components.

  Raises:
    ConfigError: if there is no component of that name.
  """
  choices = available(package)
  if component in choices:
    return f'{package.__name__}.{component}'
  if component in entry_points():
    return entry_points()[component]
  if all(part.isidentifier() for part in component.split('.')) and (
    '.' in component
  ):
    return component
  every = ', '.join((*choices, *sorted(entry_points())))
  raise errors.ConfigError(
    f'unknown component {component!r}', 'components', f'one of {every}'
  )


def group_of(component: str) -> str:
  """Returns the configuration group of a component's fields."""
  return component.rpartition('.')[2]
