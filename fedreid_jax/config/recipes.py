"""Loading of recipes from their files."""

import ast
import functools
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from fedreid_jax import errors
from fedreid_jax.config import parsing, schema

SHOWN = 200  # letters of a name that does not exist
# A plus sign in a path before `.py` or after the first colon is no separator.
_SPEC = re.compile(
  r'(?P<file>[^:]*?\.py|[^+:]*)(?P<added>(?:\+[A-Za-z_][\w.-]*)*)'
  r'(?::(?P<arg>.*))?',
  re.DOTALL,
)


class Spec(NamedTuple):
  """The parts of `FILE[+COMPONENT...][:ARGUMENT]`."""

  file: str
  added: tuple[str, ...]  # names of components
  arg: str  # the text after the colon


def read(spec: str) -> Spec:
  """Splits `FILE[+COMPONENT...][:ARGUMENT]`.

  Raises:
    ConfigError: for a name of a component that is none.
  """
  parts = _SPEC.fullmatch(spec)
  if parts is None:
    shown = spec if len(spec) <= SHOWN else f'{spec[:SHOWN]}...'
    raise errors.ConfigError(
      f'{shown} is not RECIPE[+COMPONENT...][:PRESET]',
      '--config',
      'give the module or entry point of a component after each +',
    )
  added = tuple(parts['added'].split('+')[1:])
  return Spec(parts['file'], added, parts['arg'] or '')


def folder() -> Path:
  """Returns the folder of the recipes in the package or in its checkout."""
  package = Path(__file__).parents[1]
  installed = package / 'recipes'
  return installed if installed.is_dir() else package.parent / 'configs'


def find(file: str) -> Path | None:
  """Returns the path of PATH.py, 'configs/NAME.py' or 'NAME', or None."""
  path = Path(file)
  named = path.parent in (Path(), Path('configs'))
  places = [path] if path.suffix == '.py' else []
  if named:
    places.append(folder() / f'{path.stem}.py')
  try:
    return next((place for place in places if place.is_file()), None)
  except (OSError, ValueError):  # a name that no file system has
    return None


@functools.cache
def _load(file: str) -> ModuleType:
  path = find(file)
  spec = path and importlib.util.spec_from_file_location(path.stem, path)
  if not spec or not spec.loader:
    raise errors.ConfigError(
      f'no file {file!r}', 'recipe or sweep', 'give the path of a Python file'
    )
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def names() -> list[str]:
  """Returns the names of the recipes, sorted."""
  return sorted(path.stem for path in folder().glob('[a-z]*.py'))


def missing(file: str) -> errors.ConfigError:
  """Returns the error for a recipe that does not exist."""
  near = errors.one_of(Path(file).stem, names())
  name = file if len(file) <= SHOWN else f'{file[:SHOWN]}...'
  return errors.ConfigError(f'no file {name}', '--config', near)


def about(file: str) -> str:
  """Returns the first line of the docstring of a recipe, which is not run."""
  if (path := find(file)) is None:
    raise missing(file)
  docstring = ast.get_docstring(ast.parse(path.read_bytes()))
  return (docstring or '').partition('\n')[0]


def choices(
  file: str,
) -> tuple[Mapping[str, parsing.Preset], Mapping[str, Sequence[str]]]:
  """Returns the presets of a recipe and the choices of its options."""
  try:
    call(file, 'get_config', '?')  # a preset that no recipe has
  except parsing.UnknownChoiceError as error:
    return error.presets, error.choices
  return {}, {}


def call(file: str, function: str, *args: Any) -> Any:
  """Calls a function of a recipe or sweep whose file `find` locates.

  Raises:
    ConfigError: if there is no such file, or the function raises an error.
  """
  try:
    return getattr(_load(file), function)(*args)
  except errors.FedReIDError:
    raise
  except Exception as error:  # a configuration file can raise any error
    raise errors.ConfigError(
      f'{type(error).__name__}: {error}', file, 'fix the file'
    ) from error


def recipe(spec: str, arg: str = '') -> Any:
  """Returns the configuration of a recipe, not yet validated.

  Args:
    spec: `FILE[+COMPONENT...][:key=value,...]`; FILE is 'NAME' for a recipe of
      the package, and the components follow those of the recipe.
    arg: `PRESET[,key=value...]`, inserted before the pairs of `spec`.

  Raises:
    ConfigError: a file, preset or field is missing, or the result is no
      configuration.
  """
  file, added, own = read(spec)
  if find(file) is None:
    raise missing(file)
  args = [*filter(None, (arg, own))]
  # The fields of `spec` may override those of `arg`.
  for text in args:
    parsing.check_once(parsing.split(text, ','), '--config')
  if added:
    # Added where the pairs are applied: they may be fields of the component.
    args.append(f'components+={added!r}')
  config = call(file, 'get_config', *filter(None, [','.join(args)]))
  if not isinstance(config, ConfigDict):
    raise errors.ConfigError(
      f'get_config() returns {type(config).__name__}, not a ConfigDict',
      file,
      'start from fedreid_jax.config.schema.default() and return it',
    )
  completed: Any = schema.complete(config)
  if not {*added} <= {*completed.components}:
    raise errors.ConfigError(
      f'get_config() does not add {", ".join(added)}',
      file,
      'return given.override(config), as the recipes of the package do',
    )
  return completed
