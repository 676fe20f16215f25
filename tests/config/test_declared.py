"""Declarations read from their source agree with the imported ones."""

import importlib
import subprocess
import sys

import pytest

from fedreid_jax import algorithms, errors
from fedreid_jax.config import declared, groups, schema
from fedreid_jax.core import options, plugins

COMPONENTS = [
  name
  for name in plugins.available(algorithms)
  if declared.has(f'fedreid_jax.algorithms.{name}', 'Options')
]


@pytest.mark.parametrize('name', COMPONENTS)
def test_components_as_they_are_imported(name):
  module = f'fedreid_jax.algorithms.{name}'
  imported = importlib.import_module(module).Options
  found = declared.read(module, 'Options')
  assert found is not imported
  assert options.fields(found) == options.fields(imported)
  assert found.__module__ == imported.__module__ == module


@pytest.mark.parametrize('name', (schema.TOP, *schema.CLASSES))
def test_groups_as_they_are_imported(name):
  imported = getattr(groups, name)
  found = declared.read(schema.GROUPS, name)
  assert options.fields(found) == options.fields(imported)


def test_configurations_import_no_jax_and_their_check_starts_no_backend():
  """Every recipe is made, and then checked, in one process."""
  script = """
import sys
from fedreid_jax.config import recipes, reference, validation
made = [recipes.recipe(name, 'smoke') for name in recipes.names()]
reference.markdown()
heavy = {'jax', 'flax', 'optax', 'orbax', 'PIL', 'jaxtyping'}
imported = sorted(heavy & sys.modules.keys())
for config in made:
  validation.validate(config)
from jax._src import xla_bridge
print(imported + [*xla_bridge._backends])
"""
  done = subprocess.run(
    [sys.executable, '-c', script], capture_output=True, text=True, timeout=120
  )
  assert (done.stdout, done.stderr) == ('[]\n', '')


@pytest.fixture
def package(tmp_path, monkeypatch):
  """Returns what writes a module of a package that cannot be imported."""
  folder = tmp_path / 'unimported'
  folder.mkdir()
  (folder / '__init__.py').write_text('raise RuntimeError')
  monkeypatch.syspath_prepend(tmp_path)

  def write(name, text):
    declared._Source.of.cache_clear()
    (folder / f'{name}.py').write_text(text)
    return f'unimported.{name}'

  return write


def test_definitions_that_use_each_other(package):
  package('far', "Kind = Literal['a', 'b']\nfrom typing import Literal\n")
  module = package(
    'near',
    """
import dataclasses
from typing import Annotated

import jax.numpy as jnp

from unimported import far
from unimported.far import Kind as Renamed
from . import far as sibling

LEAST: int = 2
VALUE = LEAST + 1
print('not executed')

@dataclasses.dataclass(frozen=True)
class Options:
  one: Annotated[Renamed, 'x'] = 'a'
  two: Annotated[far.Kind, 'x'] = 'b'
  three: Annotated[sibling.Kind, 'x'] = 'b'
  four: Annotated[int, 'x'] = VALUE
""",
  )
  found = options.fields(declared.read(module, 'Options'))
  assert [f.default for f in found] == ['a', 'b', 'b', 3]
  assert all(f.choices() == ('a', 'b') for f in found[:3])
  assert declared.has(module, 'LEAST') and not declared.has(module, 'nothing')
  assert 'unimported' not in sys.modules


@pytest.mark.parametrize(
  'text, message',
  [
    ('x = 1', 'no Options'),
    ('Options = missing', 'missing'),
    ('import jax\nOptions = jax.missing', 'jax.*missing'),
    ('class Options:\n  x = 1 / 0', 'ZeroDivisionError'),
    ('class Options(', 'SyntaxError'),
  ],
)
def test_definitions_that_cannot_be_read(package, text, message):
  module = package('broken', text)
  with pytest.raises(errors.ConfigError, match=message):
    declared.read(module, 'Options')


@pytest.mark.parametrize(
  'module', ['nowhere', 'nowhere.x', 'unimported.nowhere', 'sys', 'json.x.y']
)
def test_modules_without_a_source(package, module):
  assert not declared.exists(module)
  with pytest.raises(errors.ConfigError, match='no such module'):
    declared.read(module, 'Options')
