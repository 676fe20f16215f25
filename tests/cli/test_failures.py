"""Any exception leaves as one line and a code."""

import errno

import jax
import pytest

from fedreid_jax import errors
from fedreid_jax.cli import failures

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
  line = failures.explain(error).line()
  assert line.startswith(f'error[{code}]: ') and words in line
  assert '\n' not in line


def test_an_error_of_the_program_says_where(capsys):
  def body():
    return 1 // 0

  with pytest.raises(SystemExit) as info:
    failures.exit_on_error(body, debug=True)
  assert info.value.code == 70
  err = capsys.readouterr().err
  assert 'Traceback' in err
  last = err.splitlines()[-1]
  assert last.startswith('error[70]: ZeroDivisionError: ')
  assert 'test_failures.py:' in last
