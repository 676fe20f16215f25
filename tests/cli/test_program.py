"""Closed standard streams are no error, and their descriptors stay unused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from fedreid_jax.cli import program
program.open_all()
opened = os.open('/dev/null', os.O_RDONLY)
for _ in range(100):
  print('x' * 10_000)
sys.stdout.flush()
print(f'fd {opened}', file=sys.stderr)
sys.exit(5)
"""


def run(redirect: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    ['bash', '-c', f'"$0" -c "$1" {redirect}', sys.executable, PROGRAM],
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.parametrize(
  'redirect', ['| head -1; exit ${PIPESTATUS[0]}', '>&-', '<&- >&-']
)
def test_closed_stdout(redirect):
  done = run(redirect)
  assert done.returncode == 5
  assert done.stderr in ('fd 3\n', 'fd 4\n')  # bash may pass one on


def test_both_closed():
  assert run('>&- 2>&-').returncode == 5


def test_a_full_disk_is_not_passed_over():
  done = run('>/dev/full')
  assert done.returncode != 5 and 'No space left' in done.stderr
