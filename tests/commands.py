"""Commands of the launchers in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import jax

ROOT = Path(__file__).parents[1]


def launch(name: str, *flags: object, timeout: float = 240.0):
  """Returns (exit code, stdout, stderr) of `python -m launchers.NAME FLAGS`."""
  return _run(f'launchers.{name}', flags, timeout)


def launch_program(*words: object, timeout: float = 240.0):
  """Returns (exit code, stdout, stderr) of `fedreid WORDS`."""
  return _run('fedreid_jax.cli.program', words, timeout)


def start_program(*words: object) -> subprocess.Popen[str]:
  """Starts `fedreid WORDS`, which runs until it gets a signal."""
  return subprocess.Popen(
    _command('fedreid_jax.cli.program', words),
    cwd=ROOT,
    env=_environment(),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _command(module: str, words) -> list[str]:
  return [sys.executable, '-m', module, *map(str, words)]


def _environment() -> dict[str, str]:
  env = dict(os.environ) | {'JAX_NUM_CPU_DEVICES': '1'}
  env['JAX_COMPILATION_CACHE_DIR'] = str(jax.config.jax_compilation_cache_dir)
  env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.2'
  return env


def _run(module: str, words, timeout: float):
  done = subprocess.run(
    _command(module, words),
    cwd=ROOT,
    env=_environment(),
    capture_output=True,
    text=True,
    timeout=timeout,
  )
  return done.returncode, done.stdout, done.stderr
