"""Training of a configuration in a work directory."""

import contextlib
import os
from pathlib import Path
from typing import Any

import jax

from fedreid_jax.config import parsing, validation
from fedreid_jax.training import (
  agreement,
  checkpoint,
  compile_cache,
  library_logs,
  lock,
  recorder,
  report,
  run,
  run_files,
  turns,
)


def train(
  config,
  workdir: str | os.PathLike[str],
  restart: bool = False,
  verbose: bool = False,
) -> dict[str, Any]:
  """Trains, or resumes, a run in a work directory, which it locks.

  >>> import fedreid_jax as fr
  >>> config = fr.load_config('dfh:smoke', rounds=1)
  >>> results = fr.train(config, workdir='runs/one_round')
  >>> results['rounds'], [entry['target'] for entry in results['summary']]
  (1, ['mall', 'mall', 'mall'])

  Several threads may train at once, each in a work directory of its own. Where
  runs use several devices, they train one after another. Compiled programs are
  kept in the user's cache directory, unless JAX already has one. Signals are
  left to the caller: a run that is ended resumes from its last checkpoint.

  Args:
    config: `ConfigDict`, of `load_config` for example.
    workdir: directory of the run; it is made if it does not exist.
    restart: delete an earlier run in this directory instead of resuming it.
    verbose: print what the command prints.

  Returns:
    The contents of `results.json`.

  Raises:
    ConfigError: for a configuration that cannot be run, or another one than
      that of the run in the directory.
    DataError: for images or labels that cannot be trained on or evaluated.
    IntegrityError: for a damaged run in the directory.
    DivergedError: when the updates are no longer finite.
    ResourceError: when memory, a device or the disk does not suffice.
    LockedError: when another run uses the directory.
    SystemExit: with 128 + signal after a clean save, in commands only.
  """
  validation.validate(config)
  compile_cache.use()
  with turns.taken(config), library_logs.muted():
    return _train(
      config, Path(workdir).expanduser().absolute(), restart, verbose
    )


def _train(config, workdir: Path, restart: bool, verbose: bool):
  agreement.require(
    'configuration or code',
    lambda: (
      parsing.flatten(config)
      | {'--workdir': str(workdir), '--restart': restart}
      | agreement.code()
    ),
  )
  resolved, held = report.resolved(config), None
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      held = stack.enter_context(lock.Lock(workdir))
      if not restart:
        run_files.check(workdir, resolved)
    record = stack.enter_context(
      recorder.Recorder(workdir, config.rounds, verbose)
    )
    saved = checkpoint.Checkpoints(workdir, run_files.digest(resolved))
    stack.callback(saved.close)
    one = run.Run(config, record, saved, held)
    stack.callback(one.clock.close)
    if held:
      stack.enter_context(run_files.begun(workdir, restart, held.check))
    agreement.largest(0)  # no process reads before old files are deleted
    report.describe(config, one.setup, record, workdir)
    return one.all()
