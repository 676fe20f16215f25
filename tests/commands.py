"""Commands in processes of their own, most of them forked.

JAX and the package take seconds to import. A server imports them once, without
starting a backend, and each command runs in a fork of it: flags, loggers and
handlers of signals of one command are not those of the next.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import jax

ROOT = Path(__file__).parents[1]
PROGRAM = 'fedreid_jax.cli.program'
# No module of a command: two of them may define the same flag.
IMPORTED = ('fedreid_jax.cli.run', 'fedreid_jax.training.loop', 'pytest')


def launch(name: str, *flags: object, timeout: float = 240.0):
  """Returns (exit code, stdout, stderr) of `python -m launchers.NAME FLAGS`."""
  return _fork(f'launchers.{name}', flags, timeout)


def launch_program(*words: object, timeout: float = 240.0):
  """Returns (exit code, stdout, stderr) of `fedreid WORDS`."""
  return _fork(PROGRAM, words, timeout)


def start(module: str, *words: object, **variables) -> subprocess.Popen[str]:
  """Starts a new interpreter, which may get signals.

  Args:
    module: what `python -m` runs.
    words: its arguments.
    variables: of the environment.
  """
  return subprocess.Popen(
    [sys.executable, '-m', module, *map(str, words)],
    cwd=ROOT,
    env=environment() | variables,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def start_program(*words: object) -> subprocess.Popen[str]:
  """Starts `fedreid WORDS` in a new interpreter."""
  return start(PROGRAM, *words)


# A command `fedreid` for scripts.
FEDREID = f"""#!/usr/bin/env bash
exec {sys.executable} -m {PROGRAM} "$@"
"""


def launch_script(
  path: Path, folder: Path, *words: object, program: str = FEDREID, **variables
):
  """Returns (exit code, stdout, stderr) of a script that runs `fedreid`.

  Args:
    folder: for the command, and for the cache.
    program: text of the command.
    variables: of the environment.
  """
  command = folder / 'bin' / 'fedreid'
  command.parent.mkdir(exist_ok=True)
  command.write_text(program)
  command.chmod(0o755)
  own = {
    'PATH': f'{command.parent}:{os.environ["PATH"]}',
    'PYTHONPATH': str(ROOT),
    'XDG_CACHE_HOME': str(folder / 'cache'),
  }
  given = {name: str(value) for name, value in variables.items()}
  found = subprocess.run(
    ['bash', path, *map(str, words)],
    env=environment() | own | given,
    capture_output=True,
    text=True,
    timeout=1500,
    check=False,
  )
  return found.returncode, found.stdout, found.stderr


def finish(process: subprocess.Popen[str], timeout: float = 240.0):
  """Returns (exit code, stdout, stderr) of a process at its end."""
  out, err = process.communicate(timeout=timeout)
  return process.returncode, out, err


def environment() -> dict[str, str]:
  """Variables for commands that compile as the tests do."""
  env = dict(os.environ) | {'JAX_NUM_CPU_DEVICES': '1'}
  env['JAX_COMPILATION_CACHE_DIR'] = str(jax.config.jax_compilation_cache_dir)
  env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.2'
  return env


def _fork(module: str, words, timeout: float):
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload([*IMPORTED])
  # JAX reads its variables when it is imported.
  with mock.patch.dict(os.environ, environment()):
    forkserver.ensure_running()
  with tempfile.TemporaryDirectory() as folder:
    files = [os.path.join(folder, name) for name in ('stdout', 'stderr')]
    arguments = module, [*map(str, words)], environment(), files
    process = context.Process(target=_run, args=arguments)
    process.start()
    process.join(timeout)
    if process.exitcode is None:
      process.kill()
      raise subprocess.TimeoutExpired([module, *words], timeout)
    return process.exitcode, *(Path(name).read_text() for name in files)


def _run(
  module: str, words: list[str], env: Mapping[str, str], files: list[str]
) -> None:
  for number, name in enumerate(files, 1):
    opened = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.dup2(opened, number)
    os.close(opened)
  os.chdir(ROOT)
  os.environ.clear()
  os.environ.update(env)
  sys.argv = [module, *words]
  runpy.run_module(module, run_name='__main__', alter_sys=True)
