"""`fedreid list`, `--help`, nearest names, and completion in a shell."""

import ast
import re
import subprocess
import sys

import commands
import pytest

from fedreid_jax import errors
from fedreid_jax.cli import completion, program
from fedreid_jax.cli import list as listing
from fedreid_jax.config import recipes
from fedreid_jax.data.datasets import registry


def test_every_recipe_and_preset_is_listed():
  found = listing.recipe_entries()
  assert [entry.split()[0] for entry in found] == recipes.names()
  assert all(len(entry.split()) > 2 for entry in found)  # each has its purpose
  (own,) = (e for e in listing.preset_entries() if e.startswith('dfh:'))
  lines = own.splitlines()
  assert lines[0].startswith('dfh:synthetic ') and lines[-1] == '    space=f|b'


@pytest.mark.parametrize('kind', listing.kinds())
def test_every_kind_has_entries_that_say_something(kind):
  found = listing.kinds()[kind]()
  assert len(found) == len(set(found)) > 2
  assert all(len(entry.split()) > 1 for entry in found)


def test_names_are_those_that_commands_take():
  components = {e.split()[0] for e in listing.component_entries()}
  assert {'dfh', 'client_clustering', 'fedopt'} <= components
  names = [e.partition(':')[0] for e in listing.data_set_entries()]
  assert names == list(registry.DATASETS)


def test_without_a_kind_the_named_parts_are_listed():
  code, out, err = commands.launch_program('list')
  assert (code, err) == (0, '')
  *heads, more = [line for line in out.splitlines() if line[:1].strip()]
  assert heads == [f'{kind}:' for kind in listing.READ]
  assert (
    more == 'more: fedreid list datasets|fields|presets|tables|weights [WORD]'
  )
  assert '  fedpav ' in out and 'optim.lr' not in out


def test_the_named_parts_are_listed_without_jax():
  """Its import takes most of a second."""
  code = """
import atexit, sys
from fedreid_jax.cli import program
atexit.register(lambda: print('jax' in sys.modules))
sys.argv = ['fedreid', 'list']
program.main()
"""
  found = subprocess.run(
    [sys.executable, '-c', code], capture_output=True, text=True, check=True
  )
  assert found.stdout.splitlines()[-1] == 'False'


def test_a_wrong_root_is_one_line():
  process = commands.start_program(
    'train', 'dfh:photos', '--config.data.root=/nowhere'
  )
  code, _, err = commands.finish(process)
  assert code == 3 and len(err.splitlines()) == 1
  assert 'error[3]: /nowhere does not exist — data.root' in err


def test_a_word_keeps_entries_in_any_case():
  code, out, err = commands.launch_program('list', 'fields', 'LR_mult')
  assert (code, err) == (0, '')
  assert out.split()[0] == 'optim.lr_multipliers' and out.count(' = ') == 1


def test_a_name_keeps_its_own_entry():
  code, out, err = commands.launch_program('list', 'presets', 'dfh')
  assert (code, err) == (0, '')
  names = {line.partition(':')[0] for line in out.splitlines() if ':' in line}
  assert names - {'    inverted.'} == {'dfh'}
  assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize('command', program.commands())
def test_the_text_of_help_is_text(command):
  """No line of a program, and none that is wider than a terminal."""
  doc = ast.get_docstring(program.syntax(program.commands()[command])) or ''
  for line in doc.splitlines():
    assert len(line) <= 80 and not re.search(r'\w\(.*\)$| = \w', line), line


@pytest.mark.parametrize(
  'words, message',
  [
    (('list', 'componets'), 'did you mean components?'),
    (('list', 'tables', 'xyzzy'), "no tables with 'xyzzy'"),
    (('lisst',), 'did you mean list?'),
    (('train', 'dhf:smoke'), 'did you mean dfh?'),
    (('train', 'dfh:smok'), 'did you mean smoke?'),
    (('completion', 'fish'), 'one of bash, zsh'),
  ],
)
def test_wrong_names_are_one_line_with_a_remedy(words, message):
  code, _, err = commands.launch_program(*words)
  assert code == 2 and len(err.splitlines()) == 1
  assert message in err


def test_nearest_data_set():
  with pytest.raises(errors.ConfigError, match='did you mean market1501?'):
    registry.get('market')


@pytest.mark.slow
@pytest.mark.parametrize('command', program.commands())
def test_help_shows_flags_and_examples(command):
  code, out, err = commands.launch_program(command, '--help')
  assert (code, err) == (0, '')
  assert f'usage: fedreid {command}' in out
  assert f'fedreid {command}' in out.partition('\n')[2]  # an example
  assert 'Flags of every command:' in out and '--workdir=VALUE' in out
  for flag in completion.flags_of(program.commands()[command]):
    assert flag.strip('-=') in out
  assert '  optim.lr = 0.05' not in out and '--helpfull' in out


def completed(script, *words):
  """Returns what bash offers for the last word."""
  text = (
    'source /dev/stdin; shift 0; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
    '_fedreid; printf "%s\\n" "${COMPREPLY[@]}"'
  )
  found = subprocess.run(
    ['bash', '-c', text, 'bash', *words],
    input=script,
    capture_output=True,
    text=True,
    check=True,
  )
  assert not found.stderr
  return found.stdout.split()


def test_bash_completes_words():
  script = completion.script('bash')
  assert completed(script, 'fedreid', 'vis') == ['visualize']
  assert completed(script, 'fedreid', 'train', 'fedpav_kd') == [
    'fedpav_kd',
    'fedpav_kd_cdw',
  ]
  assert completed(script, 'fedreid', 'train', 'dfh', ':', 'smo') == ['smoke']
  assert completed(script, 'fedreid', 'study', '--cl') == ['--claims=']
  assert completed(script, 'fedreid', 'train', '--config.optim.lr') == [
    '--config.optim.lr=',
    '--config.optim.lr_multipliers=',
  ]
  assert completed(script, 'fedreid', 'list', 'da') == ['datasets']
  assert completed(script, 'fedreid', 'embed', '--sk') == ['--skip_unreadable']
  assert completion.script('zsh').endswith(script)
