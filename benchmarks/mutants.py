"""Bugs of one line that the tests must notice.

  python -m benchmarks.mutants [--mutant I]

Every mutation is applied to a temporary copy of the package and of the tests,
where the test files named for it run until the first failure. A mutation that
no test fails for has survived: a test is missing, or the two texts mean the
same. The exit status is 1 if any survived.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from benchmarks.mutations import MUTANTS, Mutant

ROOT = Path(__file__).parents[1]
COPIED = ('fedreid_jax', 'tests', 'configs', 'benchmarks', 'launchers')
LIMIT_S = 300.0  # a mutation may make a loop endless

ONLY = flags.DEFINE_integer('mutant', None, 'Run this mutation, from 0.')


def mutated(mutant: Mutant, root: Path = ROOT) -> str:
  """Returns the text of the file of a mutant with its bug.

  Raises:
    ValueError: when the old text does not occur exactly once.
  """
  text = Path(root, 'fedreid_jax', mutant.file).read_text()
  if text.count(mutant.old) != 1 or mutant.old == mutant.new:
    raise ValueError(f'{mutant.old!r} in {mutant.file}')
  return text.replace(mutant.old, mutant.new)


def caught(mutant: Mutant, folder: Path) -> bool:
  """Returns whether the tests of a mutant fail.

  Args:
    mutant: the bug.
    folder: copy of the project; its package is as before afterwards.

  Raises:
    RuntimeError: when pytest neither passes nor fails.
  """
  file = Path(folder, 'fedreid_jax', mutant.file)
  before = file.read_text()
  file.write_text(mutated(mutant, folder))
  command = [sys.executable, '-m', 'pytest', '-x', '-q', '-n', '0']
  command += [f'tests/{mutant.tests}']
  flags_ = ['-p', 'no:cacheprovider']
  env = os.environ | {'PYTHONPATH': str(folder), 'PYTHONDONTWRITEBYTECODE': '1'}
  try:
    done = subprocess.run(
      command + flags_,
      cwd=folder,
      env=env,
      capture_output=True,
      text=True,
      timeout=LIMIT_S,
    )
  except subprocess.TimeoutExpired:
    return True
  finally:
    file.write_text(before)
  if done.returncode not in (0, 1):
    raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
  return done.returncode == 1


def main(argv: Sequence[str]) -> None:
  """Runs the mutations and prints which were caught."""
  del argv
  chosen = range(len(MUTANTS)) if ONLY.value is None else [ONLY.value]
  survived = []
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for part in COPIED:
      ignored = shutil.ignore_patterns('__pycache__')
      shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    shutil.copy(ROOT / 'pyproject.toml', folder)
    for i in chosen:
      start, mutant = time.monotonic(), MUTANTS[i]
      found = caught(mutant, folder)
      if not found:
        survived.append(i)
      print(
        f'{i:3d} {"caught" if found else "SURVIVED":8s} '
        f'{time.monotonic() - start:5.1f} s  {mutant.file}: {mutant.new}',
        flush=True,
      )
  print(f'{len(chosen) - len(survived)} of {len(chosen)} caught', end='')
  print(f', survived: {survived}' if survived else '')
  sys.exit(bool(survived))


if __name__ == '__main__':
  app.run(main)
