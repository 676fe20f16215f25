import functools
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap

import commands
import pytest

TINY = (
  'smoke,rounds=1,data.height=32,data.width=16,data.identities=6,data.shots=2,'
  'model.features=(4,8)'
)

# A process of its own takes seconds: one of each kind is tried always.
slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['fedpav', 'fedpav+fedprx'], 'fedprox'),
    slow([], '0 methods to compare'),
    slow(['fedpav', 'fedprox', '--seeds=a'], 'not a list of numbers'),
  ],
)
def test_mistakes_are_one_line(words, message, tmp_path):
  code, _, err = commands.launch_program(
    'compare', *words, f'--workdir={tmp_path}'
  )
  assert code == 2 and len(err.splitlines()) == 1
  assert message in err


@pytest.mark.slow
@pytest.mark.parametrize(
  'words', [('compare', 'fedpav', 'fedprox'), ('study', '--claims=dfh')]
)
def test_without_matplotlib_nothing_is_trained(words, tmp_path, monkeypatch):
  (tmp_path / 'matplotlib.py').write_text('raise ImportError("none")')
  path = os.pathsep.join((str(tmp_path), str(commands.ROOT)))
  monkeypatch.setenv('PYTHONPATH', path)
  workdir = tmp_path / 'work'
  # A fork would have the path of the tests.
  process = commands.start_program(*words, f'--workdir={workdir}')
  code, _, err = commands.finish(process)
  assert code == 2 and len(err.splitlines()) == 1
  assert 'Matplotlib is not installed' in err and not workdir.exists()


@pytest.mark.slow
def test_a_rule_is_compared_and_resumed(tmp_path):
  given = ['fedpav', 'fedpav+fedprox', '--seeds=0,1', f'--arg={TINY}']
  given.append(f'--workdir={tmp_path}')
  code, out, err = commands.launch_program('compare', *given, '--shard=0/2')
  assert code == 0, err
  assert 'no seed has ended yet' in out
  code, out, err = commands.launch_program('compare', *given)
  assert code == 0, err
  assert '[4/4] fedpav+fedprox, seed 1' in out and '[1/4]' not in out
  (row,) = json.loads((tmp_path / 'compare.json').read_text())
  assert (row['method'], row['baseline']) == ('fedpav+fedprox', 'fedpav')
  assert (row['seeds'], row['target']) == (2, 'mall')
  assert row['low'] <= row['mean'] <= row['high']
  assert 'effect: mean of the paired differences' in out
  assert (tmp_path / 'compare.png').stat().st_size > 1000


@pytest.mark.slow
def test_the_five_steps_of_the_page(tmp_path):
  """The file and the commands of docs/extend.md, in a folder of their own."""
  page = (commands.ROOT / 'docs/extend.md').read_text()
  section = page.partition('## A method in five steps')[2].partition('\n## ')[0]
  blocks = re.findall(r'```(\w*)\n(.*?)```', textwrap.dedent(section), re.S)
  (code,) = [text for kind, text in blocks if kind == 'python']
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine/power_rule.py').write_text(textwrap.dedent(code))
  shell = [textwrap.dedent(text) for kind, text in blocks if not kind]
  assert [text.split()[2] for text in shell] == [
    *('check-component', 'train', 'train', 'compare')
  ]
  program = f'{sys.executable} -m fedreid_jax.cli.program'
  for text in shell:
    done = subprocess.run(
      text.replace('PYTHONPATH=. fedreid', f'PYTHONPATH=. {program}').replace(
        'power_rule:smoke', shlex.quote(f'power_rule:{TINY}')
      ),
      shell=True,
      cwd=tmp_path,
      capture_output=True,
      text=True,
      timeout=240,
      check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 'docstring' not in done.stdout
  rows = json.loads((tmp_path / 'runs/power/compare.json').read_text())
  assert rows[0]['method'] == 'fedpav+mine.power_rule' and rows[0]['seeds'] == 3
  assert not rows[0]['identical']
