"""The parameters that a run neither trains nor sends, from another run.

With `model.tune` or `model.trained` most of a backbone is constant. It has the
values of `model.pretrained`, or with `start_from` those of the server's model
of that run. The latter are copied to the work directory: a resumed run and
later commands need the other run no longer, which may go on, move or end.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import trees
from fedreid_jax.core.types import Flat
from fedreid_jax.models import tuning
from fedreid_jax.training.files import atomic, recorder, run_files

DIGEST = 'frozen_sha256'  # in run.json


def pinned(config: Config, workdir: Path) -> Config:
  """Returns the configuration that builds the network of a saved run.

  Its `start_from` is the work directory, which has the constants.
  """
  if not config.start_from or not tuning.plan(config.model):
    return config
  about = recorder.read_object(workdir / run_files.DESCRIBED)
  # Runs from before this file have the constants of `model.pretrained`.
  return replace(config, start_from=str(workdir) if DIGEST in about else '')


def described(
  config: Config, frozen: Flat, before: dict[str, Any] | None
) -> dict[str, str]:
  """Returns the digest of the constants for `run.json`, if they are copied.

  Args:
    before: the object in `run.json` of a run that is resumed.
  """
  copied = config.start_from and frozen
  if not copied or (before is not None and DIGEST not in before):
    return {}
  return {DIGEST: trees.digest(frozen)}


def write(workdir: Path, frozen: Flat) -> None:
  """Writes the constants of a run, before its first checkpoint."""
  arrays = {n: np.ascontiguousarray(x) for n, x in frozen.items()}
  content = safetensors_numpy.save(arrays)
  atomic.write_bytes(workdir / run_files.FROZEN, content)


def started(
  folder: str, first: Flat, chosen: tuning.Plan, base: Callable[[Config], Flat]
) -> Flat:
  """Returns the variables of a network whose constants are those of a run.

  Args:
    folder: of the run.
    first: initial variables of the whole network.
    chosen: what is trained now.
    base: returns the variables of the whole network of a configuration without
      `start_from`, before its training.

  Raises:
    IntegrityError: for a damaged run, or one of another network.
    ConfigError: if the server of the run has not all constants.
  """
  workdir = Path(folder).expanduser()
  theirs = load.load_saved(workdir)
  earlier, kept = tuning.plan(theirs.model), None
  if earlier:
    kept = _read(workdir)
    if kept is None:
      kept = tuning.frozen(base(replace(theirs, start_from='')), earlier)
  alike = earlier is None or _same_matrices(earlier, chosen, folder)
  needed = tuning.frozen(first, chosen)
  if kept is None or not alike or needed.keys() - kept.keys():
    kept = _backbone(workdir, kept or {}, None if alike else earlier)
  absent = [n for n in needed if n not in kept and not tuning.may_be_new(n)]
  if absent:
    raise errors.ConfigError(
      f'no model of a server to start from: {min(absent)} was not shared',
      folder,
      'name it in model.trained, or start from a run that shared it',
    )
  check_fits(kept, first)
  return first | kept


def _read(workdir: Path) -> Flat | None:
  """Reads the constants of a run, None if it has no copy."""
  about = recorder.read_object(workdir / run_files.DESCRIBED)
  if DIGEST not in about:
    return None
  path = workdir / run_files.FROZEN
  try:
    found = safetensors_numpy.load_file(path)
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), run_files.AGAIN
    ) from error
  if trees.digest(found) != about[DIGEST]:
    raise errors.IntegrityError(
      'is not as the run wrote it', str(path), run_files.AGAIN
    )
  return found


def _same_matrices(
  earlier: tuning.Plan, chosen: tuning.Plan, folder: str
) -> bool:
  """Whether the run adds no parameters to kernels, or those added now too."""
  if not earlier.tune:
    return True
  same = earlier._replace(trained='') == chosen._replace(trained='')
  if chosen.tune and not same:
    raise errors.ConfigError(
      f'{folder} has other parameters in its kernels',
      'model.tune',
      'set the fields model.tune* of that run, or train without them',
    )
  return same


def _backbone(workdir: Path, kept: Flat, merge: tuning.Plan | None) -> Flat:
  """The backbone of the one model of a server.

  Args:
    kept: constants of the run.
    merge: its plan, if parameters that it added belong into the kernels now.
  """
  saved = run_files.checkpoints_of(workdir)
  shared, _, groups, _ = saved.restore_models(saved.find('latest'))
  used = np.unique(groups)
  if len(used) > 1:
    raise errors.ConfigError(
      f'no model of a server to start from: {len(used)} models',
      str(workdir),
      'start from a run with one model',
    )
  leaves = {n: x[used[0]] for n, x in shared.items()}
  backbone, _ = trees.split(leaves, tuning.BACKBONE)
  if merge:
    backbone = tuning.merged(backbone, kept, merge)
  return kept | {n: x for n, x in backbone.items() if not tuning.is_added(n)}


def check_fits(found: Flat, model: Flat) -> None:
  """Refuses leaves of another model; some leaves may be missing."""
  different = [
    f'{n} is {list(x.shape)}, not {list(model[n].shape)}'
    if n in model
    else f'{n} is not in the model'
    for n, x in found.items()
    if n not in model or x.shape != model[n].shape
  ]
  if different:
    raise errors.IntegrityError(
      'checkpoint of another model: ' + '; '.join(different[:5]),
      'checkpoint',
      'use the configuration it was made with',
    )
