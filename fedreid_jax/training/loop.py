"""Training of a configuration in a work directory."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from fedreid_jax.config import parsing, saved_config, schema, validation
from fedreid_jax.training import build, hooks, run
from fedreid_jax.training.callbacks import Callback
from fedreid_jax.training.files import (
  checkpoint,
  lock,
  recorder,
  run_files,
  run_secret,
)
from fedreid_jax.training.processes import (
  agreement,
  compile_cache,
  library_logs,
  turns,
)
from fedreid_jax.training.reports import report
from fedreid_jax.training.tracking import trackers


def train(
  config: Any,
  workdir: str | os.PathLike[str],
  restart: bool = False,
  verbose: bool = False,
  callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
  """Trains, or resumes, a run in a work directory, which it locks.

  >>> import fedreid_jax as fr
  >>> config = fr.load_config('dfh:smoke', rounds=1)
  >>> results = fr.train(config, workdir='runs/one_round')
  >>> results['rounds'], [entry['target'] for entry in results['summary']]
  (1, ['mall', 'mall', 'mall'])

  Several threads may train at once in different work directories. Runs that use
  several devices train one after another. Compiled programs are kept in the
  user's cache directory, unless JAX already has one. Signals are handled by the
  caller; a run that was interrupted resumes from its last checkpoint. If a
  tracker of `config.track` fails, there is a warning, and the run continues
  without it; an exception of a callback ends the run.

  Args:
    config: `ConfigDict`, of `load_config` for example.
    workdir: directory of the run; it is made if it does not exist.
    restart: delete an earlier run in this directory instead of resuming it.
    verbose: print the lines that `fedreid train` prints.
    callbacks: instances of classes derived from `Callback`, called in this
      order by the first process of the run.

  Returns:
    The contents of `results.json`; fewer rounds than configured after a
    callback has raised `StopTraining`.

  Raises:
    ConfigError: for a configuration that cannot be run, or that differs from
      the one of the run in the directory.
    DataError: for images or labels that cannot be trained on or evaluated.
    IntegrityError: for a damaged run in the directory.
    DivergedError: when the updates are no longer finite.
    ResourceError: when memory, a device or the disk does not suffice.
    LockedError: when another run uses the directory.
    Exception: raised by a callback; the round was saved before.
    SystemExit: with 128 + signal after a clean save, in commands only.
  """
  return run_rounds(build.build, config, workdir, restart, verbose, callbacks)


def run_rounds(
  make: build.Maker,
  config: Any,
  workdir: str | os.PathLike[str],
  restart: bool = False,
  verbose: bool = False,
  callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
  """Trains, or resumes, a run as `train` does, with the parts of `make`.

  Args:
    make: `(config, root of the secret) -> Setup`; `build.build` for a
      simulation of all clients.
    config: as for `train`.
    workdir: as for `train`.
    restart: as for `train`.
    verbose: as for `train`.
    callbacks: as for `train`.
  """
  validation.validate(config)
  hooks.check(callbacks)
  trackers.check(config.track)
  compile_cache.use()
  with turns.taken(config), library_logs.muted():
    folder = Path(workdir).expanduser().absolute()
    return _train(make, config, folder, restart, verbose, callbacks)


def _train(
  make: build.Maker,
  config,
  workdir: Path,
  restart: bool,
  verbose: bool,
  callbacks: Sequence[Callback],
):
  # Processes that differ in a field or in code would train different models and
  # end with wrong numbers.
  agreement.require(
    'configuration or code',
    lambda: (
      parsing.flatten(config)
      | {'--workdir': str(workdir), '--restart': restart}
      | agreement.code(schema.plug_ins(config))
    ),
  )
  resolved, held = saved_config.to_json(config), None
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      held = stack.enter_context(lock.Lock(workdir))
      if not restart:
        run_files.check(workdir, resolved)
    record = stack.enter_context(
      recorder.Recorder(workdir, config.rounds, verbose)
    )
    saved = checkpoint.Checkpoints(workdir, run_files.digests(resolved))
    stack.callback(saved.close)
    calls = hooks.Hooks(record, [*trackers.make(config, record), *callbacks])
    # Only the first process reads or draws the secret; the others receive it.
    root = agreement.of_first(lambda: run_secret.root(config, workdir, restart))
    one = run.Run(config, record, saved, held, calls, make, root)
    stack.callback(one.clock.close)
    # Only now, when all parts are built, a restart deletes the earlier run.
    if held:
      stack.enter_context(run_files.begun(workdir, restart, held.check))
    agreement.largest(0)  # no process reads before old files are deleted
    report.describe(config, one.setup, record, workdir, root)
    with calls:
      return one.all()
