"""Checkpoints with verified content: Orbax's files and a manifest of each step.

A resumed run uses the newest step that verifies.
"""

import contextlib
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedreid_jax import errors
from fedreid_jax.core.types import ClientState, ServerState
from fedreid_jax.training.files import orbax_files, recorder, sealed, steps
from fedreid_jax.training.files.client_files import ClientFiles

KEPT = 2  # newest steps kept, beside the best
STAYS = 'stays'  # whether no later step replaces this one, in its JSON part
# Errors of a JSON file that is none, or has another form.
DAMAGED = ValueError, KeyError, TypeError, AttributeError


class Checkpoints(steps.Steps):
  """The saved steps of one work directory."""

  def __init__(
    self, workdir: Path, config: Sequence[str] = (), stay: bool = False
  ):
    """Opens `workdir/checkpoints`, which the first save creates.

    Steps verify if they have one of the digests `config` of the configuration;
    those that are saved have the first one. With `stay` no later step replaces
    those that are saved, also after a resume without it.
    """
    super().__init__((workdir / steps.FOLDER).resolve(), config)
    self.workdir, self._stay = workdir, stay

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

    The files of measurements that the JSON part names are copied.

    Raises:
      ResourceError: when the disk is full or cannot be written.
      IntegrityError: when a file of measurements is not as the run wrote it.
    """
    config = next(iter(self._config), None)
    described: dict[str, Any] = {'step': step, 'config': config, 'run': host}
    if score is not None:
      described['mAP'] = score
    if self._stay:
      described[STAYS] = True
    in_files = isinstance(clients, ClientFiles)
    if in_files:
      described['rows'] = clients.describe()
    trees = steps.items(server, clients.index if in_files else clients)
    self._check_room(trees)
    folder = self._root / str(step)
    if folder.exists():
      raise self._saved_by_another(step)
    try:
      self._root.mkdir(parents=True, exist_ok=True)
      orbax_files.write(folder, {k: tree for k, tree in trees.items() if tree})
      if jax.process_index() == 0:
        self._complete(step, described)
    except (OSError, ValueError) as error:  # TensorStore raises the latter
      if 'already exists' in str(error):
        raise self._saved_by_another(step) from error
      reason = errors.disk_is_full(error)
      if not (reason or isinstance(error, OSError)):
        raise
      for partial in orbax_files.partial(self._root, str(step)):
        shutil.rmtree(partial, ignore_errors=True)
      raise errors.ResourceError(
        f'checkpoint not written: {reason or error}',
        str(self._root),
        f'{errors.MAKE_ROOM}; the same command resumes',
      ) from error
    return folder

  def _complete(self, step: int, described: dict[str, Any]) -> None:
    """Describes a step that was written, and removes those it replaces."""
    folder = self._root / str(step)
    measured = described['run'].get(sealed.FILES, {})
    sealed.copy(measured, self.workdir, folder)
    recorder.write_json(folder / steps.DESCRIBED, described)
    # Orbax stores no checksum of its payload: a flipped bit would be restored
    # as wrong weights without an error. A manifest means a complete step.
    recorder.write_json(steps.manifest(self._root, step), steps.digests(folder))
    there = [k for k in self.steps() if steps.manifest(self._root, k).exists()]
    scores: dict[int, float | None] = {}
    stay: set[int] = set()
    for number in there:
      with contextlib.suppress(OSError, *DAMAGED):
        scores[number] = self.score(number)
        if self._described(number).get(STAYS):
          stay.add(number)
    # A damaged step stays for `latest`, which names it.
    damaged = {*there} - scores.keys()
    kept = {*there[:KEPT], _highest(scores)} | damaged | stay
    for stale in there:
      if stale not in kept:
        steps.manifest(self._root, stale).unlink()
        shutil.rmtree(self._root / str(stale), ignore_errors=True)

  def _saved_by_another(self, step: int) -> errors.IntegrityError:
    return errors.IntegrityError(
      f'step {step} was saved by another process',
      str(self._root),
      'end every run that uses it, then start one of them again',
    )

  def _check_room(self, trees: dict[str, Any]) -> None:
    """Refuses a save that is larger than the free disk space."""
    needed = sum(x.nbytes for x in jax.tree.leaves(trees))
    free = shutil.disk_usage(self.workdir).free
    if needed > free:
      raise errors.ResourceError(
        f'checkpoint not written: it has {needed:,} bytes, {free:,} are free',
        str(self._root),
        f'{errors.MAKE_ROOM}; the same command resumes',
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
    # A kill during a save leaves a copy of the states.
    for left in orbax_files.partial(self._root):
      shutil.rmtree(left, ignore_errors=True)
    whole, damaged = self._checked()
    if whole:
      self._warn(damaged, whole[0])
      # A run that goes on saves these numbers again.
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
    """Deletes steps, so that their numbers can be saved again."""
    for step in numbers:
      shutil.rmtree(self._root / str(step), ignore_errors=True)

  def best(self) -> int | None:
    """The step with the highest score, the newest of equals, or None."""
    return self._best(self._checked()[0])

  def _best(self, whole: Sequence[int]) -> int | None:
    return _highest({step: self.score(step) for step in whole})

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


def _highest(scores: Mapping[int, float | None]) -> int | None:
  """The step with the highest score, the newest of equals, or None."""
  known = [(score, step) for step, score in scores.items() if score is not None]
  return max(known)[1] if known else None
