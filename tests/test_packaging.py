"""Files beside the package agree with it, and imports point one way."""

import ast
import graphlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fedreid_jax

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']


def test_requirements_of_a_gpu_host_have_the_bounds_of_the_package():
  extras = PROJECT['optional-dependencies']
  wanted = [one for one in PROJECT['dependencies'] if one[:4] != 'jax>']
  extras_ = 'cuda12 datasets viz search serve export track privacy test'
  for extra in extras_.split():
    wanted += [one for one in extras[extra] if one[:12] != 'fedreid_jax[']
  lines = (ROOT / 'requirements.txt').read_text().splitlines()
  found = [line for line in lines if not line.startswith('#')]
  assert sorted(found) == sorted([*wanted, '-e .'])


def test_accelerators_have_the_bounds_of_jax():
  (plain,) = (one for one in PROJECT['dependencies'] if one[:4] == 'jax>')
  for extra in ('cuda12', 'cuda13', 'tpu'):
    (one,) = PROJECT['optional-dependencies'][extra]
    assert one == plain.replace('jax', f'jax[{extra}]')


def test_the_image_has_the_extras_that_commands_ask_for():
  extras = re.search(r'\[([\w,]+)\$', (ROOT / 'Dockerfile').read_text())
  assert extras is not None
  named = extras[1].split(',')
  assert {*named} <= PROJECT['optional-dependencies'].keys()
  assert {'viz', 'search', 'serve', 'privacy', 'export'} <= {*named}


def test_imports_point_one_way():
  cli = pytest.importorskip('importlinter.cli', reason='pip install .[dev]')
  status = cli.lint_imports(
    config_filename=str(ROOT / 'pyproject.toml'), no_cache=True
  )
  assert status == cli.EXIT_STATUS_SUCCESS


def test_no_modules_import_each_other_in_a_circle():
  grimp = pytest.importorskip('grimp', reason='pip install .[dev]')
  graph = grimp.build_graph('fedreid_jax', cache_dir=None)
  imports = {
    m: graph.find_modules_directly_imported_by(m) for m in graph.modules
  }
  graphlib.TopologicalSorter(imports).prepare()  # or a CycleError names them


@pytest.mark.parametrize(
  'path', sorted((ROOT / 'configs').glob('*.py')), ids=lambda path: path.stem
)
def test_a_recipe_does_not_import_another(path):
  # In a wheel the recipes are files inside fedreid_jax: no package `configs`.
  imported = set()
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      imported |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      imported.add('.' if node.level else str(node.module))
  assert not {n for n in imported if n.partition('.')[0] in ('configs', '')}


def test_the_citation_has_this_version_and_five_papers():
  citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
  assert citation['cff-version'] == '1.2.0'
  assert str(citation['version']) == fedreid_jax.__version__
  assert citation['license'] == PROJECT['license']
  assert len(citation['references']) == 5
  for paper in citation['references']:
    assert paper['authors'] and paper['title'] and paper['year']
    assert paper.get('journal') or paper['conference']
