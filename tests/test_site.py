"""The pages of the site are complete, and its hooks make what they promise.

`mkdocs build --strict` in .ci/run finds links that lead nowhere.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import documented
import pytest
import yaml

import fedreid_jax
from fedreid_jax import algorithms, errors, method
from fedreid_jax.cli import program
from fedreid_jax.config import recipes, reference, schema
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
def test_a_page_has_a_command_that_trains(path):
  found = documented.commands(path.read_text())
  assert path.stem == 'index' or any(words[0] == 'train' for words in found)


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
  assert r'h\_k' in reference.escaped('h_k')


@pytest.mark.parametrize(
  'package', [fedreid_jax, method], ids=['api', 'method']
)
def test_a_page_has_every_public_name(package):
  page = 'api.md' if package is fedreid_jax else 'method.md'
  made = pages.on_page_markdown((DOCS / page).read_text())
  for name in package.__all__:
    assert f'::: {package.__name__}.{name}\n' in f'{made}\n'


def test_the_options_are_made_from_the_fields():
  made = pages.on_page_markdown((DOCS / 'options.md').read_text())
  assert made.startswith('# Options') and '<!--' not in made
  for group in schema.groups(schema.evaluators_of_package()):
    assert f'## `{group}`\n' in made if group else '## Top level\n' in made
    assert f'\n\n{reference.table(group)}\n' in made


def test_the_commands_are_made_from_their_flags():
  made = pages.on_page_markdown((DOCS / 'commands.md').read_text())
  assert '<!--' not in made
  for name in program.commands():
    assert f'\n## {name}\n' in made and f'[`{name}`](#{name})' in made
  row = '| `--[no]dry_run` | yes or no |  | Print what a run does and needs'
  assert row in made.partition('## train')[2].partition('\n## ')[0]
  common = made.partition('## Flags of every command')[2]
  row = (
    '| `--workers` | integer, at least 1 | `1` | sweep, tune, compare, table'
  )
  assert row in common
  assert not [*filter(None, map(documented.problem, documented.commands(made)))]


def test_the_exit_codes_are_those_of_the_classes():
  made = pages.on_page_markdown((DOCS / 'errors.md').read_text())
  found = re.findall(r'^\| (\d+) \| `(\w+)` \| \S', made, re.MULTILINE)
  classes = [errors.ConfigError, errors.DataError, errors.IntegrityError]
  classes += [errors.DivergedError, errors.ResourceError, errors.LockedError]
  classes += [errors.InternalError, errors.HookError]
  assert found == [(str(one.exit_code), one.__name__) for one in classes]


EXTRA = yaml.safe_load((ROOT / 'mkdocs.yml').read_text())['extra']


def test_pages_have_what_the_search_needs():
  def meta(name):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
    assert pages.on_page_markdown('x', page, {'extra': EXTRA}) == 'x'
    return page.meta

  named = [*EXTRA['search_words'], *EXTRA['search_boost']]
  assert not [name for name in named if not (DOCS / name).is_file()]
  assert 'install' in meta('install.md')['tags']
  assert 'learning rate' in meta('comparisons.md')['tags']
  assert meta('CHANGELOG.md') == {'search': {'boost': 0.1}}
  assert meta('results/claims.md') == {'hide': ['toc']}
  assert meta('concepts.md') == {}


# What the worker of the search answers: the page of the best result.
ASK = """
const fs = require('fs'), vm = require('vm')
const [script, index, ...queries] = process.argv.slice(1)
const scope = {console, postMessage: (answer) => done(answer)}
let done, listen
scope.self = scope
scope.addEventListener = (_, listener) => (listen = listener)
vm.createContext(scope)
vm.runInContext(fs.readFileSync(script, 'utf8'), scope)
const ask = (type, data) =>
  new Promise((resolve) => ((done = resolve), listen({data: {type, data}})))
;(async () => {
  await ask(0, {options: {}, ...JSON.parse(fs.readFileSync(index))})
  for (const query of queries) {
    const {items} = (await ask(2, query)).data
    console.log(items[0][0].location.split('#')[0])
  }
})()
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which('node'), reason='needs Node.js')
def test_the_search_finds_the_page_for_a_question(tmp_path):
  pytest.importorskip('material', reason='pip install .[docs]')
  settings = yaml.safe_load((ROOT / 'mkdocs.yml').read_text())
  # Without the generated pages and notebooks, whose plug-ins take a minute.
  settings |= {
    'docs_dir': str(DOCS),
    'hooks': [str(DOCS / 'hooks' / 'pages.py')],
    'plugins': [one for one in settings['plugins'] if 'search' in one],
    'exclude_docs': 'hooks/\nnotebooks/\napi.md\nmethod.md\ncommands.md',
    'site_dir': str(tmp_path / 'site'),
  }
  del settings['nav'], settings['validation'], settings['watch']
  for one in settings['markdown_extensions']:
    if 'pymdownx.snippets' in one:
      one['pymdownx.snippets']['base_path'] = [str(ROOT)]
  file = tmp_path / 'mkdocs.yml'
  file.write_text(yaml.safe_dump(settings))
  command = [sys.executable, '-m', 'mkdocs', 'build', '--quiet', '-f', file]
  subprocess.run(command, check=True, timeout=300, capture_output=True)
  site = tmp_path / 'site'
  (worker,) = site.glob('assets/javascripts/workers/search.*.min.js')
  expected = {
    'install': 'install/',
    'learning rate': 'comparisons/',
    'own images': 'photographs/',
    'photographs': 'photographs/',
    'exit code': 'errors/',
    'GPU': 'machines/',
    'differential privacy': 'privacy/',
  }
  index = site / 'search' / 'search_index.json'
  done = subprocess.run(
    ['node', '-e', ASK, worker, index, *expected],
    check=True,
    timeout=60,
    capture_output=True,
    text=True,
  )
  found = dict(zip(expected, done.stdout.split('\n'), strict=False))
  assert found == expected


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
