"""Checkpoints with verified content, by Orbax and the manifests of `steps`.

A resumed run uses the newest step that verifies.
"""

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from fedreid_jax import errors
from fedreid_jax.core.types import ClientState, ServerState
from fedreid_jax.training.files import recorder, steps
from fedreid_jax.training.files.client_files import ClientFiles

KEPT = 2  # newest steps kept, beside the best


class Checkpoints(steps.Steps):
  """The saved steps of one work directory."""

  def __init__(
    self, workdir: Path, config: Sequence[str] = (), read_only: bool = False
  ):
    """Opens `workdir/checkpoints`, which the first save creates.

    Steps verify if they have one of the digests `config` of the configuration;
    those that are saved have the first one.
    """
    super().__init__((workdir / steps.FOLDER).resolve(), config)
    self.workdir = workdir
    self._options = ocp.CheckpointManagerOptions(
      best_fn=_score,
      read_only=read_only,
      # A manifest needs the digests of complete files.
      enable_async_checkpointing=False,
      preservation_policy=None
      if read_only
      else managers.AnyPreservationPolicy(
        [
          managers.LatestN(KEPT),
          managers.BestN(
            n=1, get_metric_fn=_score, keep_checkpoints_without_metrics=False
          ),
        ]
      ),
    )
    self._manager: ocp.CheckpointManager | None = None

  @property
  def _open(self) -> ocp.CheckpointManager:
    if self._manager is None:
      if not self._options.read_only:
        self._root.mkdir(parents=True, exist_ok=True)
      self._manager = ocp.CheckpointManager(self._root, options=self._options)
    return self._manager

  def close(self) -> None:
    """Releases Orbax's resources; the next call acquires them again."""
    if self._manager is not None:
      self._manager.close()
      self._manager = None

  def save(
    self,
    step: int,
    server: ServerState,
    clients: ClientState | ClientFiles,
    host: dict[str, Any],
    score: float | None,
  ) -> Path:
    """Saves the state after `step` rounds, waits for it, returns its directory.

    The clients are all states, on the host, `[N, ...]`, or their files, which
    all processes have written and published. The score of the evaluation of
    this step, if any, is stored as 'mAP', whatever its metric is.

    Raises:
      ResourceError: when the disk is full or cannot be written.
    """
    config = next(iter(self._config), None)
    described: dict[str, Any] = {'step': step, 'config': config, 'run': host}
    in_files = isinstance(clients, ClientFiles)
    if in_files:
      described['rows'] = clients.describe()
    trees = steps.items(server, clients.index if in_files else clients)
    items: dict[str, Any] = {
      name: ocp.args.StandardSave(item)  # pyright: ignore[reportCallIssue]
      for name, item in trees.items()
      if item
    }
    items['host'] = ocp.args.JsonSave(described)  # pyright: ignore[reportCallIssue]
    self._check_room(trees)
    try:
      taken = self._open.save(
        step,
        args=ocp.args.Composite(**items),
        metrics=None if score is None else {'mAP': score},
      )
      self._open.wait_until_finished()
      if not taken:  # Orbax returns False for a step that exists already
        raise errors.IntegrityError(
          f'step {step} was saved by another process',
          str(self._root),
          'end every run that uses it, then start one of them again',
        )
      # Orbax stores no checksum of its payload: a flipped bit would be restored
      # as wrong weights without an error.
      if jax.process_index() == 0:
        files = steps.digests(self._root / str(step))
        recorder.write_json(steps.manifest(self._root, step), files)
        # Orbax has deleted older steps, and a manifest means a complete step.
        for stale in steps.complete(self.workdir):
          if not (self._root / stale.stem.removeprefix('manifest-')).exists():
            stale.unlink()
    except (OSError, ValueError) as error:  # TensorStore raises the latter
      reason = errors.disk_is_full(error)
      if not (reason or isinstance(error, OSError)):
        raise
      for partial in self._root.glob(f'{step}.orbax-checkpoint-tmp*'):
        shutil.rmtree(partial, ignore_errors=True)
      raise errors.ResourceError(
        f'checkpoint not written: {reason or error}',
        str(self._root),
        'make room; the same command resumes',
      ) from error
    return self._root / str(step)

  def _check_room(self, trees: dict[str, Any]) -> None:
    """Refuses a save that is larger than the free disk space."""
    needed = sum(x.nbytes for x in jax.tree.leaves(trees))
    free = shutil.disk_usage(self.workdir).free
    if needed > free:
      raise errors.ResourceError(
        f'checkpoint not written: it has {needed:,} bytes, {free:,} are free',
        str(self._root),
        'make room; the same command resumes',
      )

  def _checked(self) -> tuple[list[int], list[tuple[int, str]]]:
    """Returns (steps that verify, problems of the others), newest first."""
    # Each step is read only once, because its files are as large as the states.
    found = [(step, self.verify(step)) for step in self.steps()]
    whole = [step for step, trouble in found if trouble is None]
    damaged = [(step, text) for step, text in found if text is not None]
    return whole, damaged

  def _warn(self, damaged: list[tuple[int, str]], used: int) -> None:
    for step, trouble in damaged:
      warnings.warn(
        f'checkpoint {step} passed over, round {used} is used: {trouble} '
        f'({self._root})',
        errors.DamagedCheckpointWarning,
        stacklevel=2,
      )

  def latest(self) -> int | None:
    """Returns the newest step that verifies, and removes all that do not.

    A `DamagedCheckpointWarning` names each step that is removed.

    Raises:
      IntegrityError: when no saved step verifies; then nothing is removed.
    """
    whole, damaged = self._checked()
    if whole:
      self._warn(damaged, whole[0])
      # Orbax reads the metrics of every step when it saves, so that a damaged
      # older step, such as the best, would end the run later.
      self._remove([bad for bad, _ in damaged])
      return whole[0]
    # After an interrupted first save, step 0 is the only one. Later steps
    # exist beside older ones until they are complete.
    if steps.complete(self.workdir) or any(step for step, _ in damaged):
      what = [f'{step}: {trouble}' for step, trouble in damaged[:1]]
      raise errors.IntegrityError(
        '; '.join(['no checkpoint verifies', *what]),
        str(self._root),
        'restore the files from a copy, or start again with --restart',
      )
    self._remove([step for step, _ in damaged])
    return None

  def _remove(self, numbers: list[int]) -> None:
    """Deletes steps, so that Orbax accepts their numbers again."""
    self.close()
    for step in numbers:
      shutil.rmtree(self._root / str(step), ignore_errors=True)

  def best(self) -> int | None:
    """The step with the highest score, the newest of equals, or None."""
    return self._best(self._checked()[0])

  def _best(self, whole: Sequence[int]) -> int | None:
    paths = {k: self._root / str(k) / 'metrics' / 'metrics' for k in whole}
    scores = [
      (_score(json.loads(path.read_text())), step)
      for step, path in paths.items()
      if path.is_file()
    ]
    return max(scores)[1] if scores else None

  def find(self, which: str) -> int:
    """The step of 'latest', 'best' or a number.

    A `DamagedCheckpointWarning` names each step that does not verify and could
    have been chosen.

    Raises:
      ConfigError: for any other text.
      IntegrityError: when the step does not exist or does not verify.
    """
    if which not in ('latest', 'best') and not which.isdecimal():
      raise errors.ConfigError(
        f'unknown checkpoint {which!r}', '--checkpoint', 'latest, best or N'
      )
    whole, damaged = self._checked()
    if which.isdecimal():
      step, damaged = int(which), [x for x in damaged if x[0] == int(which)]
      if damaged:
        raise errors.IntegrityError(
          f'checkpoint {step}: {damaged[0][1]}',
          str(self._root),
          'choose another',
        )
      step = step if step in whole else None
    elif which == 'latest':
      step = whole[0] if whole else None
      damaged = [x for x in damaged if step is not None and x[0] > step]
    else:
      step = self._best(whole)
    if step is None:
      raise errors.IntegrityError(
        f'no checkpoint {which}', str(self._root), f'there are {whole}'
      )
    self._warn(damaged, step)
    return step


def _score(metrics) -> float:
  return metrics['mAP']
