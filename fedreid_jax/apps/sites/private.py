"""The private states of a site, on the disk of the site.

A file has the state after a number of rounds whose update the site has sent.
The coordinator decides from which of them a round starts.
"""

import os
from pathlib import Path
from typing import Any

import safetensors
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec
from fedreid_jax.core import param_filter
from fedreid_jax.core.types import ClientState
from fedreid_jax.training.files import atomic, structure

INITIAL = -1  # number of the state before the first message; it has no file


class PrivateStates:
  """The states of one site in one run, by number of rounds."""

  def __init__(self, folder: Path):
    """Creates the folder; only its owner can read it.

    Raises:
      ResourceError: when the folder cannot be created.
    """
    self._folder = folder
    with errors.on_disk(folder):
      folder.mkdir(parents=True, exist_ok=True)
      # `mkdir` does not change the mode of a folder that exists.
      os.chmod(folder, 0o700)

  def save(self, number: int, state: ClientState, oldest: int) -> None:
    """Writes a state, and deletes states that are no longer needed.

    Args:
      number: of rounds that are done.
      state: on the host.
      oldest: number of the oldest state that the coordinator may ask for.
    """
    # safetensors does not notice changed values of a damaged file.
    arrays = structure.named(state)
    found = {'digest': param_filter.digest(arrays)}
    atomic.write_bytes(
      self._path(number), safetensors_numpy.save(arrays, found)
    )
    # Older updates may not have arrived, and a coordinator that resumes repeats
    # rounds: it tells how far back it may go.
    for old in self.numbers():
      if old < oldest:
        self._path(old).unlink(missing_ok=True)

  def load(self, number: int, like: Any) -> ClientState:
    """Returns a state.

    Args:
      number: of rounds that are done.
      like: a state, or its shapes.

    Raises:
      IntegrityError: when the state is not there, or is damaged.
    """
    path = self._path(number)
    fix = 'restore it from a copy, or start the run again with --restart'
    try:
      data = path.read_bytes()
      arrays = safetensors_numpy.load(data)
      wanted = codec.metadata(data)['digest']
    except (
      OSError,
      KeyError,
      TypeError,
      ValueError,
      safetensors.SafetensorError,
    ) as error:
      raise errors.IntegrityError(
        f'the private state after {errors.counted(number, "round")} cannot be '
        f'read: {error}',
        str(path),
        fix,
      ) from error
    if param_filter.digest(arrays) != wanted:
      raise errors.IntegrityError('it was changed', str(path), fix)
    return codec.fit(arrays, like, str(path))

  def numbers(self) -> list[int]:
    """Returns the numbers of rounds of the states that are there."""
    names = (path.stem for path in self._folder.glob('*.safetensors'))
    return sorted(int(name) for name in names if name.isdecimal())

  def _path(self, number: int) -> Path:
    return self._folder / f'{number}.safetensors'
