"""Declarations of hyper-parameters, read without importing their modules.

The modules of components, losses and networks import JAX, and a configuration
must be checked before JAX is started. Therefore the source of a module is
parsed, and only the required class is compiled, together with the names that it
uses: aliases such as `Novel = Literal['dirichlet', 'none']` and constants, in
this module or in another one, which is read in the same way. Only the modules
in `IMPORTED` are imported.
"""

import ast
import functools
import importlib
import importlib.util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from fedreid_jax import errors

IMPORTED = (
  *('dataclasses', 'math', 'typing'),
  *('fedreid_jax.core.options', 'fedreid_jax.core.plugins'),
  # For the names of their modules.
  *('fedreid_jax.models.backbones', 'fedreid_jax.evaluation.evaluators'),
)


def exists(module: str) -> bool:
  """Returns whether a module has a source file."""
  return _path(module) is not None


def has(module: str, name: str) -> bool:
  """Returns whether a module defines or imports a name at its top level."""
  return name in _Source.of(module).nodes


def read(module: str, name: str) -> Any:
  """Returns a class, alias or constant of a module that is not imported.

  Args:
    module: full name.
    name: name defined at the top level of the module.

  Raises:
    ConfigError: if the module or the name is not found, or the definition
      needs more than `IMPORTED` and other definitions of the same kind.
  """
  try:
    return _Source.of(module).value(name)
  except errors.FedReIDError:
    raise
  except Exception as error:  # a definition is code and can raise any error
    raise errors.ConfigError(
      f'{name} cannot be read: {type(error).__name__}: {error}',
      module,
      'declare it with names of dataclasses, typing and '
      'fedreid_jax.core.options',
    ) from error


class _Unimported:
  """Placeholder for a module in the definitions of another module."""

  def __init__(self, module: str):
    self._module = module

  def __getattr__(self, name: str) -> Any:
    return read(self._module, name)


class _Source:
  """The definitions of one module, evaluated when they are used."""

  def __init__(self, path: Path, module: str):
    self.nodes: dict[str, ast.stmt] = {}
    self._module = module
    self._namespace: dict[str, Any] = {'__name__': module}
    for node in ast.parse(path.read_text(encoding='utf-8'), str(path)).body:
      for name in _defines(node):
        self.nodes[name] = node

  @staticmethod
  @functools.cache
  def of(module: str) -> '_Source':
    path = _path(module)
    if path is None:
      raise errors.ConfigError('no such module', module, 'check the name')
    return _Source(path, module)

  def value(self, name: str) -> Any:
    if name in self._namespace:
      return self._namespace[name]
    if name not in self.nodes:
      raise NameError(f'{self._module} has no {name}')
    node = self.nodes[name]
    if isinstance(node, ast.Import | ast.ImportFrom):
      self._namespace[name] = self._imported(node, name)
    else:
      for used in ast.walk(node):
        if isinstance(used, ast.Name) and used.id in self.nodes.keys() - {name}:
          self.value(used.id)
      code = compile(
        ast.Module([node], []), self._module, 'exec', dont_inherit=True
      )
      exec(code, self._namespace)
    return self._namespace[name]

  def _imported(self, node: ast.Import | ast.ImportFrom, name: str) -> Any:
    alias = next(a for a in node.names if name in (a.asname, a.name))
    if isinstance(node, ast.Import):
      return _module(alias.name)
    parents = self._module.split('.')[: -node.level] if node.level else []
    parent = '.'.join((*parents, *filter(None, [node.module])))
    if exists(f'{parent}.{alias.name}'):
      return _module(f'{parent}.{alias.name}')
    return getattr(_module(parent), alias.name)


def _module(name: str) -> Any:
  if name in IMPORTED:
    return importlib.import_module(name)
  return _Unimported(name)


def _defines(node: ast.stmt) -> list[str]:
  """Returns the names that a statement at the top level binds."""
  if isinstance(node, ast.Import | ast.ImportFrom):
    return [alias.asname or alias.name for alias in node.names]
  if isinstance(node, ast.ClassDef):
    return [node.name]
  if isinstance(node, ast.AnnAssign):
    targets: list[ast.expr] = [node.target]
  else:
    targets = node.targets if isinstance(node, ast.Assign) else []
  return [
    name.id
    for target in targets
    for name in ast.walk(target)
    if isinstance(name, ast.Name)
  ]


def _path(module: str) -> Path | None:
  """Returns the path of a module's source, without importing its packages."""
  name, *rest = module.split('.')
  try:
    spec: ModuleSpec | None = importlib.util.find_spec(name)
  except (ImportError, ValueError):
    return None
  for part in rest:
    if spec is None or spec.submodule_search_locations is None:
      return None
    name = f'{name}.{part}'
    spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
  found = spec is not None and spec.has_location and spec.origin
  return Path(found) if found and found.endswith('.py') else None
