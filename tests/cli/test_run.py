"""Flags that are refused, and exceptions as one line and an exit code."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from absl import flags

from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.config import schema

FIELDS = schema.fields()


@pytest.fixture(scope='module')
def known():
  values = flags.FlagValues()
  flags.DEFINE_string('config', None, '', flag_values=values)
  flags.DEFINE_string('workdir', None, '', flag_values=values)
  flags.DEFINE_bool('debug', False, '', flag_values=values)
  flags.DEFINE_multi_string('set', [], '', flag_values=values)
  return values


@pytest.mark.parametrize(
  'line, values',
  [
    ('--config.seed 1 --config.seed 2', "'1' and '2'"),
    ('--config.seed=1 --config.seed 2', "'1' and '2'"),
    ('--config.seed 1 -config.seed=2', "'1' and '2'"),
    ('--config.optim.lr -1 --config.optim.lr 2', "'-1' and '2'"),
    ('--workdir a --debug --workdir b', "'a' and 'b'"),
    ('--config f.py --config=f.py', "'f.py' and 'f.py'"),
    ('--debug --nodebug', "'true' and 'false'"),
    ('--config.data.invert --noconfig.data.invert', "'true' and 'false'"),
    ('--config.data.invert --config.data.invert=False', "'true' and 'False'"),
    ('--unknown 1 --unknown 2', "'1' and '2'"),
  ],
)
def test_a_flag_twice_in_any_form(known, line, values):
  with pytest.raises(errors.ConfigError, match=f'twice: {values}'):
    run.read_flags(line.split(), known, FIELDS)


@pytest.mark.parametrize(
  'line',
  [
    '--config.seed 1 --config.rounds 1',
    '--set a=1 --set a=2 --set=b=3',
    '--workdir --config.seed --config.seed 1',  # a value that looks like one
    '--config.data.invert --config.seed 1 --debug --workdir x',
    '--config.optim.lr -1 --config.optim.momentum -1',
    '--config=f.py:smoke,seed=1 --config.seed=2 stray',
    '--workdir',
  ],
)
def test_lines_that_say_nothing_twice(known, line):
  run.read_flags(line.split(), known, FIELDS)


@pytest.mark.parametrize(
  'flag, field',
  [
    ('--config.optim.learing_rate=1', 'optim.lr'),
    ('--config.optim.learing_rate 1', 'optim.lr'),
    ('--config.optim.momentun=1', 'optim.momentum'),
    ('--config.roundz=1', 'rounds'),
    ('--config.lr=1', 'optim.lr or fedbuff.lr or fedopt.lr or kd.lr'),
    ('--config.model.momentum=1', 'optim.momentum or .* kd.momentum or .*'),
    ('--config.optm.nesterow=1', 'optim.nesterov'),
    ('--noconfig.data.invrt', 'data.invert'),
    ('--config.model.features[0]=1', 'model.features'),
  ],
)
def test_a_misspelt_field_gets_the_nearest(known, flag, field):
  with pytest.raises(errors.ConfigError, match=f'mean {field}\\?') as info:
    run.read_flags(flag.split(), known, FIELDS)
  assert info.value.exit_code == 2 and info.value.where.startswith('--')


def test_a_field_that_is_near_nothing(known):
  with pytest.raises(errors.ConfigError, match="'zzz.qqq'.*list fields"):
    run.read_flags(['--config.zzz.qqq=1'], known, FIELDS)


FULL = 'RESOURCE_EXHAUSTED: Error writing "a/0": No space left on device'


@pytest.mark.parametrize(
  'error, code, words',
  [
    (errors.DataError('no images', 'x', 'y'), 3, 'no images — x — y'),
    (MemoryError(), 6, 'local.batch'),
    (MemoryError('Unable to allocate 3 TiB\nfor'), 6, 'local.batch'),
    (
      jax.errors.JaxRuntimeError('RESOURCE_EXHAUSTED: while trying\nmore'),
      6,
      'local.batch',
    ),
    (
      jax.errors.JaxRuntimeError('INTERNAL: Out of memory allocating 9 bytes'),
      6,
      'local.batch',
    ),
    (ValueError(FULL), 6, 'check the disk'),
    (OSError(errno.ENOSPC, 'No space left on device', '/x/y'), 6, '/x/y'),
    (OSError(errno.EIO, 'Input/output error'), 6, 'Input/output error'),
  ],
  ids=lambda value: str(value)[:30],
)
def test_codes(error, code, words):
  line = run.explain(error).line()
  assert line.startswith(f'error[{code}]: ') and words in line
  assert '\n' not in line


def test_an_error_of_the_program_says_where(capsys):
  def body():
    return 1 // 0

  with pytest.raises(SystemExit) as info:
    run.exit_on_error(body, debug=True)
  assert info.value.code == 70
  err = capsys.readouterr().err
  assert 'Traceback' in err
  last = err.splitlines()[-1]
  assert last.startswith('error[70]: ZeroDivisionError: ')
  assert 'test_run.py:' in last


COMPILING = """
import time
from concurrent import futures
from fedreid_jax import errors
from fedreid_jax.cli import run
from fedreid_jax.round import ahead

def body():
  thread = futures.ThreadPoolExecutor(1, ahead.COMPILER)
  thread.submit(time.sleep, 600)
  thread.shutdown(wait=False)
  print('before')
  raise errors.DataError('bad', 'here', 'mend it')

run.exit_on_error(body, debug=False)
"""


def test_an_error_ends_a_command_although_a_compiler_runs():
  done = subprocess.run(
    [sys.executable, '-c', COMPILING],
    env=os.environ | {'PYTHONPATH': str(Path(run.__file__).parents[2])},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == errors.DataError.exit_code
  assert done.stdout == 'before\n' and done.stderr.startswith('error[')
