"""Components are told apart by what they are, and never by their names."""

import ast
import functools
import importlib
import sys
from pathlib import Path

import pytest

import fedreid_jax
from fedreid_jax import algorithms, errors
from fedreid_jax.config import recipes, schema, validation
from fedreid_jax.core import options, plugins
from fedreid_jax.method import guarantee
from fedreid_jax.round import compose

NAMES = plugins.available(algorithms)
ROOT = Path(fedreid_jax.__file__).parent
# Where the name of a component is something else, or the name of a recipe.
ALLOWED = {
  'apps/papers/tables': 'recipes',
  'config/infrared.py': 'recipes',
  'config/presets.py': 'recipes',
  'config/configuration.py': 'the default of `components`',
  'cli/train.py': 'the default recipe',
  'training/contract.py': 'what is beside a tested component',
  'data/client_split.py': 'a split of the data',
  'data/options.py': 'a sampling of galleries',
}
WORDS = {'noise', 'uniform'}  # also of audits, samplers and distributions
PARTNERS = ('fedpav', 'fedavg', 'standalone')  # select shared parameters
CHANGES = (
  {},
  {'model.norm': 'batch'},
  {'model.neck': 'bnneck'},
  {'model.modality_specific_stages': 1},
  {'local.accumulate': True, 'optim.momentum': 0.0},
  {'optim.name': 'adam'},
  {'optim.reset_each_round': True},
  {'start_from': 'runs/other'},
  {'data.labels': 'max'},
  {'data.client_split': 'iid'},
  {'batch_stats_rule': 'first_client'},
  {'loss.triplet': 1.0},
  {'evaluation.ensemble': ('concat',)},
  {'availability.in_flight': 2},
  {'availability.deadline_s': 60.0, 'fraction': 0.5},
)


@functools.cache
def component(name):
  (made,) = compose.load((name,), {}, algorithms)
  return made


def test_no_module_outside_knows_a_component_by_its_name():
  found = []
  for path in sorted(ROOT.rglob('*.py')):
    here = path.relative_to(ROOT).as_posix()
    if here.startswith(('algorithms/', *ALLOWED)):
      continue
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Constant) and node.value in {*NAMES} - WORDS:
        found.append(f'{here}:{node.lineno}: {node.value!r}')
  assert not found


def imported(path):
  """Returns the modules and names that a file imports, wherever it does."""
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      # A module of the package imports others by their full names.
      assert not node.level, path
      yield from (f'{node.module}.{alias.name}' for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      # The argument of an import while the program runs.
      if node.value.startswith(f'{algorithms.__name__}.'):
        yield node.value


def test_no_module_outside_imports_a_component():
  """Not even where names are allowed: what others need is its value."""
  modules = tuple(f'{algorithms.__name__}.{name}' for name in NAMES)
  found = [
    f'{path.relative_to(ROOT)}: {name}'
    for path in sorted(ROOT.rglob('*.py'))
    if not path.is_relative_to(ROOT / 'algorithms')
    for name in imported(path)
    if f'{name}.'.startswith(tuple(f'{module}.' for module in modules))
  ]
  assert not found


def outcome(components):
  """Returns the error of a composition, '' for none."""
  try:
    compose.check(components)
    for owner in [c for c in components if c.claim]:
      guarantee._check_order(owner, components)
  except errors.ConfigError as error:
    return error.line()
  return ''


@pytest.mark.parametrize('name', NAMES)
def test_a_component_of_another_name_is_composed_alike(name):
  renamed = component(name)._replace(name='another_name')
  own = component(name)
  for partner in PARTNERS:
    for other in NAMES:
      beside = [component(x) for x in dict.fromkeys((partner, other))]
      if own in beside:
        continue
      for before, after in (
        ([*beside, own], [*beside, renamed]),
        ([own, *beside], [renamed, *beside]),
      ):
        expected = outcome(before).replace(repr(name), "'another_name'")
        assert outcome(after) == expected, (partner, other)


@pytest.fixture
def renamed(tmp_path, monkeypatch):
  """Returns a function that makes a plug-in of a built-in component."""
  folder = tmp_path / 'renaming'
  folder.mkdir()
  (folder / '__init__.py').write_text('')
  monkeypatch.syspath_prepend(tmp_path)

  def make(name):
    module = f'fedreid_jax.algorithms.{name}'
    (folder / f'my_{name}.py').write_text(
      f'from {module} import *\n'
      f'from {module} import make as own, rules\n'
      'def make(*options):\n'
      f'  return own(*options)._replace(name="my_{name}")\n'
    )
    return f'renaming.my_{name}'

  yield make
  for module in [m for m in sys.modules if m.partition('.')[0] == 'renaming']:
    del sys.modules[module]


def judged(config):
  try:
    validation.validate(config)
  except errors.ConfigError as error:
    return error.line()
  return ''


def has_rules(name):
  return hasattr(
    importlib.import_module(f'fedreid_jax.algorithms.{name}'), 'rules'
  )


WITH_RULES = [name for name in NAMES if has_rules(name)]


@pytest.mark.parametrize(
  ('name', 'beside'),
  [
    (name, beside)
    for name in WITH_RULES
    for beside in ('fedpav', 'dpsgd', 'secagg')
    if name != beside
  ],
)
def test_a_plug_in_has_the_rules_of_its_component(name, beside, renamed):
  refused = 0
  other = renamed(name)
  for change in CHANGES:
    mine, theirs = (recipes.recipe('fedpav', 'smoke') for _ in range(2))
    first = ('fedpav',) if beside == 'fedpav' else ('fedpav', beside)
    mine.components = (*first, name)
    theirs.components = (*first, other)
    schema.complete(theirs)
    mine.update_from_flattened_dict(change)
    theirs.update_from_flattened_dict(change)
    expected = judged(mine)
    refused += bool(expected)
    found = judged(theirs).replace(f'my_{name}', name).replace('renaming.', '')
    assert found == expected, change
  assert refused


def test_marks_of_fields_are_found_by_their_full_names():
  fields = schema.fields()
  marks = {name: field.marks for name, field in fields.items() if field.marks}
  assert options.Mark.STRENGTH in marks['dfh.lam']
  assert options.Mark.PER_RUN in marks['dpsgd.epsilon']
  assert 'fedatt.epsilon' not in schema.marked(options.Mark.PER_RUN)
