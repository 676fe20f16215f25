"""The pages of the site are complete, and its hooks make what they promise.

`mkdocs build --strict` in .ci/run finds links that lead nowhere.
"""

import importlib.util
import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import fedreid_jax
from fedreid_jax import algorithms
from fedreid_jax.config import parsing, recipes, schema, validation
from fedreid_jax.core import options, plugins

ROOT = Path(__file__).parents[1]
DOCS = ROOT / 'docs'
METHODS = sorted((DOCS / 'methods').glob('*.md'))
NOTEBOOKS = sorted((DOCS / 'notebooks').glob('*.ipynb'))


def load_hooks():
  path = DOCS / 'hooks' / 'pages.py'
  spec = importlib.util.spec_from_file_location('pages', path)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


pages = load_hooks()


def leaves(tree):
  if isinstance(tree, str):
    return [tree]
  below = tree.values() if isinstance(tree, dict) else tree
  return [leaf for part in below for leaf in leaves(part)]


def test_every_page_is_in_the_navigation_once():
  listed = leaves(yaml.safe_load((ROOT / 'mkdocs.yml').read_text())['nav'])
  files = {
    str(path.relative_to(DOCS)) for path in (*DOCS.rglob('*.md'), *NOTEBOOKS)
  }
  assert sorted(listed) == sorted(files)


def test_every_component_has_a_page_with_its_options_and_deviations():
  names = plugins.available(algorithms)
  assert not {*names} - {path.stem for path in METHODS}
  for name in names:
    text = (DOCS / 'methods' / f'{name}.md').read_text()
    assert f'<!-- deviations: {name} -->' in text
    assert (f'<!-- options: {name} -->' in text) == (name in schema.groups())
    assert '## Equation' in text and '$$' in text and '## Paper' in text


def test_every_recipe_is_on_a_page_of_methods():
  text = '\n'.join(path.read_text() for path in METHODS)
  missing = [n for n in recipes.names() if f'fedreid train {n}' not in text]
  assert set(missing) <= {'pretrain'}


@pytest.mark.parametrize('path', METHODS, ids=lambda path: path.stem)
def test_commands_of_a_page_are_valid(path):
  text = path.read_text().replace('\\\n', ' ')
  commands = [
    shlex.split(line)[2:]
    for line in text.splitlines()
    if line.startswith('fedreid train ')
  ]
  assert commands or path.stem == 'index'
  for spec, *flags in commands:
    flags = [flag for flag in flags if not flag.startswith('--workdir=')]
    pairs = [flag.removeprefix('--config.').split('=', 1) for flag in flags]
    assert all(flag.startswith('--config.') for flag in flags)
    config = recipes.recipe(spec)
    for field, value in pairs:
      config = parsing.change(config, [f'{field}={value}'])
    if ':photos' not in spec:
      validation.validate(config)


def test_recipes_that_pages_include_exist():
  found = [
    line.strip().removeprefix('--8<-- ').strip('"')
    for path in METHODS
    for line in path.read_text().splitlines()
    if '--8<--' in line
  ]
  assert found and all((ROOT / name).is_file() for name in found)


@pytest.mark.parametrize('path', METHODS, ids=lambda path: path.stem)
def test_comments_of_a_page_are_replaced(path):
  made = pages.on_page_markdown(path.read_text())
  assert '<!--' not in made
  if f'<!-- options: {path.stem} -->' in path.read_text():
    for field in options.fields(schema.groups()[path.stem]):
      assert f'| `{field.name}` | `{field.default!r}`' in made


def test_deviations_are_those_of_the_docstring():
  text = pages.deviations('fedprox')
  first, second = text.split('\n\n')
  assert first == (
    'Deviations from the paper: no client does less work than the others.'
  )
  assert second.startswith('Deviations from the released code: there')
  assert second.endswith('FedProx give no mu: 0.01 is an assumption.')
  assert '(`batch_stats`)' in pages.deviations('noise')
  assert r'h\_k' in pages.SPECIAL.sub(pages._escaped, 'h_k')


def test_the_api_has_every_public_name():
  made = pages.on_page_markdown((DOCS / 'api.md').read_text())
  for name in fedreid_jax.__all__:
    assert f'::: fedreid_jax.{name}\n' in f'{made}\n'


def test_formulas_become_mathml():
  pytest.importorskip('latex2mathml', reason='pip install .[docs]')
  page = SimpleNamespace(file=SimpleNamespace(src_uri='concepts.md'))
  made = pages.on_page_content(
    '<p><span class="arithmatex">\\(a &lt; b\\)</span></p>'
    '<div class="arithmatex">\\[\\sum_k w_k\\]</div>',
    page,
  )
  assert made.count('<math') == 2 and 'arithmatex' not in made
  assert '&lt;' in made or '&#x0003C;' in made
  assert made.count('<div class="formula">') == 1
  page.file.src_uri = 'notebooks/a.ipynb'
  made = pages.on_page_content(
    '<p>of $a_k$:</p><p>$$\\sum_k w_k$$</p><pre>echo $HOME $PWD</pre>', page
  )
  assert made.count('<math') == 2 and made.count('<div class="formula">') == 1
  assert made.endswith('<pre>echo $HOME $PWD</pre>')


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_shipped_with_its_outputs(path):
  cells = [
    cell
    for cell in json.loads(path.read_text())['cells']
    if cell['cell_type'] == 'code'
  ]
  outputs = [output for cell in cells for output in cell['outputs']]
  assert any('image/png' in output.get('data', {}) for output in outputs)
  wrong = [
    output
    for output in outputs
    if output['output_type'] == 'error' or output.get('name') == 'stderr'
  ]
  assert not wrong
  text = path.read_text()
  assert '/tmp/' not in text and '/root/' not in text and '/home/' not in text
  assert path.stat().st_size < 400_000
