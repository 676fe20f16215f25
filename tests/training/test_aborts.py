"""An abort of native code is one line and a code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICE = (
  'F1121 14:31:28.820215 7406 client.h:80] Terminating process\\n@ 0x7f\\n'
)
PROGRAM = """
import os, threading
from fedreid_jax import errors
from fedreid_jax.training.processes import aborts
taken = aborts.Aborts(lambda: errors.ResourceError('lost', 'here', 'again'))
os.write(2, b'{text}')
{end}
"""


def run(text: str, end: str) -> tuple[int, str]:
  done = subprocess.run(
    [sys.executable, '-c', PROGRAM.format(text=text, end=end)],
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
  )
  return done.returncode, done.stderr


@pytest.mark.parametrize(
  'end',
  [
    'os.abort()',
    'threading.Thread(target=os.abort).start(); threading.Event().wait()',
  ],
  ids=['main', 'thread'],
)
def test_the_service_is_one_line(end):
  code, err = run(SERVICE, end)
  assert (code, err) == (6, 'error[6]: lost — here — again\n')


def test_another_abort_keeps_its_message():
  code, err = run('Check failed: x\\n', 'os.abort()')
  assert code == 70
  lines = err.splitlines()
  assert lines[0] == 'Check failed: x'
  assert lines[1].startswith('error[70]: native code aborted')


def test_messages_of_native_code_pass():
  code, err = run('W1121 slow operation\\n', 'taken.drain()')
  assert (code, err) == (0, 'W1121 slow operation\n')
