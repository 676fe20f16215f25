"""README and docs name only what there is."""

import ast
import importlib
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import documented
import jax.numpy as jnp
import ml_collections
import pytest

from fedreid_jax import algorithms
from fedreid_jax.apps.papers.tables import index
from fedreid_jax.cli import program
from fedreid_jax.config import recipes, schema
from fedreid_jax.core import plugins
from fedreid_jax.training import contract

ROOT = Path(__file__).parents[1]
# One page is left out: it has the names of earlier versions.
DOCS = [
  ROOT / 'README.md',
  ROOT / 'CONTRIBUTING.md',
  *sorted(set((ROOT / 'docs').rglob('*.md')) - {ROOT / 'docs/upgrade.md'}),
]
LAUNCHED = ('README.md', 'docs/training.md')  # have one such command each
PRESETS = ('synthetic', 'smoke', 'nine', 'photos', 'omniglot', 'paper')


@pytest.fixture(params=DOCS, ids=lambda path: path.name)
def doc(request):
  return request.param


def expanded(text: str) -> list[str]:
  """Returns the names that braces such as `a/{b,c}.py` stand for."""
  parts = re.split(r'\{([^{}]*)\}', text)
  choices = [
    part.split(',') if k % 2 else [part] for k, part in enumerate(parts)
  ]
  return [''.join(chosen) for chosen in itertools.product(*choices)]


def is_placeholder(name: str) -> bool:
  return Path(name).stem.isupper() or name.startswith('mine/')


def test_files_exist(doc):
  found = re.findall(r'[\w./-]*(?:\{[\w,]+\})?[\w./-]*\.py\b', doc.read_text())
  named = [name for text in found for name in expanded(text) if '/' in name]
  missing = [
    name
    for name in named
    if not is_placeholder(name) and not (ROOT / name).is_file()
  ]
  assert not missing


def test_commands_run_without_a_checkout(doc):
  """Except where the programs of a checkout are named; a wheel has none."""
  calls = doc.read_text().count('launchers.')
  assert calls == (doc.relative_to(ROOT).as_posix() in LAUNCHED)


# What a search and replace leaves of a sentence on two names of a thing.
SAME = re.compile(
  r'`([^`]+)`\s+(?:\(`\1`|(?:is|are)\s+(?:the\s+same(?:\s+\w+)?\s+as\s+)?`\1`)'
)


def test_nothing_is_said_to_be_itself(doc):
  assert not SAME.findall(doc.read_text())


@pytest.mark.parametrize(
  'text', ['`x` is `x`', '`x` (`x`)', '`x y` is\nthe same program as `x y`']
)
def test_sentences_that_say_nothing_are_found(text):
  assert SAME.search(text) and not SAME.search(text.replace('x', 'z', 1))


def prose(text: str) -> str:
  """Returns the sentences, without code, tables and targets of links."""
  text = re.sub(r'```.*?```|`[^`]*`|^ *\|[^\n]*', '', text, flags=re.S | re.M)
  return re.sub(r'\]\([^)]*\)', ']', text)


def test_pages_that_explain_epsilon_name_the_limit_of_floating_point():
  pages = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in DOCS
    if re.search(r'(?<!\\)\bepsilon\b', prose(path.read_text()))
  }
  methods = {
    f'docs/methods/{name}.md' for name in ('dfh', 'dpsgd', 'dp_fedavg')
  }
  assert {'docs/privacy.md', 'docs/audits.md', 'docs/results/privacy.md'} | (
    methods | {'docs/what_is_private.md'}
  ) <= {*pages}
  link = re.compile(r'\[rounding\]\([\w./]*#where-the-noise-comes-from\)')
  assert not [name for name, text in pages.items() if not link.search(text)]


EPSILON = [
  *(f'fedreid_jax/algorithms/{name}.py' for name in ('dpsgd', 'dfh')),
  *(f'fedreid_jax/method/{name}.py' for name in ('accounting', 'guarantee')),
  *(f'configs/{name}.py' for name in ('dpsgd', 'dp_fedavg', 'dfh_dp')),
  *('fedreid_jax/algorithms/dp_fedavg.py', 'fedreid_jax/cli/privacy.py'),
]


@pytest.mark.parametrize('name', EPSILON)
def test_docstrings_that_explain_epsilon_name_the_limit(name):
  text = ast.get_docstring(ast.parse((ROOT / name).read_text())) or ''
  assert re.search(r'float32\s+noise|noise,?\s+(which\s+)?is\s+float32', text)


def test_the_package_prints_commands_that_run_without_a_checkout():
  sources = [*(ROOT / 'fedreid_jax').rglob('*.py'), *ROOT.glob('configs/*.py')]
  named = [path for path in sources if 'launchers.' in path.read_text()]
  assert len(sources) > 300 and not named


def test_links_lead_somewhere(doc):
  links = re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', doc.read_text())
  assert not [link for link in links if not (doc.parent / link).exists()]


def test_recipes_and_presets_exist(doc):
  text = doc.read_text()
  found = re.findall(
    r'configs/([\w{},]+)\.py((?:\[?:[\w|,=.]+)?)', text
  ) + re.findall(
    r'fedreid (?:train|sweep) (\w+)(?![\w/])((?::[\w|,=.]+)?)', text
  )
  for names, rest in found:
    first = re.split(r'[,\]]', rest.lstrip('[:'))[0]
    presets = [] if '=' in first else [p for p in first.split('|') if p]
    for name in expanded(names):
      if name.isupper():
        assert all(p in PRESETS or p.isupper() for p in presets), presets
        continue
      assert name in recipes.names(), name
      for preset in presets:
        if not preset.isupper():
          recipes.recipe(f'configs/{name}.py', preset)


def test_programs_commands_and_tables_exist(doc):
  text = doc.read_text()
  for package, module in re.findall(r'\b(launchers|benchmarks)\.(\w+)', text):
    if not module.isupper():
      assert (ROOT / package / f'{module}.py').is_file(), module
  for command in re.findall(r'^ *`?fedreid ([a-z][\w-]*)', text, re.MULTILINE):
    assert command in program.commands(), command
  for name in re.findall(r'(?:--table=|fedreid table )(\w+/\w+)', text):
    assert name in index.TABLES, name


def test_commands_in_blocks_are_valid(doc):
  found = map(documented.problem, documented.commands(doc.read_text()))
  assert not [*filter(None, found)]


@pytest.mark.parametrize('name', program.commands())
def test_commands_in_the_help_of_a_command_are_valid(name):
  text = ast.get_docstring(program.syntax(program.commands()[name])) or ''
  lines = [line for line in text.splitlines() if line.startswith('  ')]
  block = '\n'.join(['```', *lines, '```'])
  found = map(documented.problem, documented.commands(block))
  assert not [*filter(None, found)]


@pytest.mark.parametrize(
  'line, words',
  [
    ('fedreid trian dfh', "no command 'trian'"),
    ('  $ fedreid train dfg:smoke', 'mean dfh'),
    ('XLA_FLAGS=x fedreid sweep dfh:smok --seeds=0', 'mean smoke'),
    ('fedreid compare fedpav fedprx --arg=smoke', 'mean fedprox'),
    ('fedreid train dfh \\\n  --config.optim.lrr=1 | tee log', 'mean optim.lr'),
    ('fedreid train dfh --config.optim.lr=-1  # no', 'out of range'),
    ('fedreid train dfh:optim.lr=-1', 'out of range'),
    ('fedreid evaluate --workdir=DIR --set=evaluation.metrik=l2', 'metrik'),
    ('fedreid evaluate --workdir=DIR --set evaluation.metric=l', 'metric'),
    ('fedreid evaluate --workdri=DIR', 'workdri'),
    ('fedreid evaluate DIR', 'stray'),
    ('fedreid table dfh/table99', 'table99'),
    ('fedreid train fedpav+mine.x:smoke --config.optim.lx=DIR', 'lx'),
  ],
)
def test_wrong_commands_are_found(line, words):
  (found,) = documented.commands(f'```\n{line}\n```')
  assert words in documented.problem(found)


@pytest.mark.parametrize(
  'line',
  [
    'fedreid train RECIPE:PRESET --config.FIELD=VALUE',
    'fedreid train fedpav+mine.x:smoke --config.x.a=3   # it is mine',
    'fedreid train dfh:photos --config.data.root=$DIR --workdir=runs/a',
    'fedreid data doctor --root=DIR [--deep]',
  ],
)
def test_placeholders_of_a_command_are_accepted(line):
  (found,) = documented.commands(f'```\n{line}\n```')
  assert documented.problem(found) == ''


def test_the_command_that_lists_every_table_is_on_the_page():
  text = (ROOT / 'docs/comparisons.md').read_text()
  assert {'fedreid list tables', 'fedreid table --list'} <= {*text.split('\n')}
  assert [line.split()[0] for line in index.entries()] == [*index.TABLES]


def test_fields_exist(doc):
  config = schema.default()
  fields = {
    section: set(config[section])
    for section in config
    if isinstance(config[section], ml_collections.ConfigDict)
  }
  found = re.findall(r'(?<![\w./])(\w+)\.([a-z]\w*)(?![\w(/])', doc.read_text())
  wrong = [
    f'{section}.{field}'
    for section, field in found
    if section in fields and field not in fields[section] | {'py', 'json', 'md'}
  ]
  assert not wrong


def test_lists_are_complete(doc):
  text = doc.read_text()
  if doc.name == 'algorithms.md':
    names = plugins.available(algorithms)
    assert not [n for n in names if f'`{n}`' not in text]


@pytest.fixture
def near(monkeypatch, tmp_path):
  """The module `mine/near.py` of the README."""
  text = (ROOT / 'README.md').read_text().partition('## A method')[2]
  code = re.findall(r'```python\n(.*?)```', text, re.DOTALL)[0]
  (tmp_path / 'mine_of_readme').mkdir()
  (tmp_path / 'mine_of_readme' / 'near.py').write_text(code)
  monkeypatch.syspath_prepend(tmp_path)
  return importlib.import_module('mine_of_readme.near')


def test_the_method_of_the_readme_is_one(near):
  made = near.make(near.Options(mu=0.1))
  shared = {'params/kernel': jnp.zeros(2), 'batch_stats/mean': jnp.zeros(2)}
  own = {'params/kernel': jnp.ones(2), 'batch_stats/mean': jnp.ones(2)}
  loss, _ = made.client.loss(own, (), SimpleNamespace(received=shared))
  assert loss == pytest.approx(0.1)


@pytest.mark.slow
def test_the_method_of_the_readme_passes_the_check(near):
  findings = [*contract.check(near.__name__)]
  assert len(findings) == 8 and not [one for one in findings if one.problem]


def test_the_example_of_a_component_is_one():
  text = (ROOT / 'docs' / 'algorithms.md').read_text()
  (code,) = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
  scope: dict = {}
  exec(code, scope)
  made = scope['make'](scope['Options'](mu=0.1))
  shared = {'params/kernel': jnp.zeros(2), 'batch_stats/mean': jnp.zeros(2)}
  ctx = SimpleNamespace(received=shared)
  loss, _ = made.client.loss({'params/kernel': jnp.ones(2)}, (), ctx)
  assert loss == pytest.approx(0.1)
