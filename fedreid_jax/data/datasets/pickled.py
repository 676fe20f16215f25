"""Reads pickled batches of byte arrays without executing their content.

This reader calls nothing but three replacements for the parts of a NumPy array
and refuses files that name anything else. It is the only module of the package
that uses pickle.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors


class _Dtype:
  """Replaces `numpy.dtype`, whose state does not matter for bytes."""

  def __init__(self, code: Any, *_: Any):
    self.code = code.decode() if isinstance(code, bytes) else code

  def __setstate__(self, state: Any) -> None:
    del state


class _Array:
  """Replaces `numpy.ndarray` while the file is read."""

  def __init__(self, *_: Any):
    self.state: Any = None

  def __setstate__(self, state: Any) -> None:
    self.state = state

  def value(self) -> np.ndarray:
    """The array, which must be of bytes in C or Fortran order."""
    _, shape, dtype, fortran, data = self.state
    if not isinstance(dtype, _Dtype) or dtype.code != 'u1':
      raise pickle.UnpicklingError('an array of anything but bytes')
    flat = np.frombuffer(data, np.uint8)
    return flat.reshape(shape, order='F' if fortran else 'C')


# NumPy 2 has renamed `numpy.core` to `numpy._core`; files can have either name.
_ALLOWED = {('numpy', 'ndarray'): _Array, ('numpy', 'dtype'): _Dtype} | {
  (f'numpy.{core}.multiarray', '_reconstruct'): _Array
  for core in ('core', '_core')
}


class _Unpickler(pickle.Unpickler):
  def find_class(self, module_name: str, global_name: str) -> Any:
    # The base class would import and call any function that a file names.
    try:
      return _ALLOWED[module_name, global_name]
    except KeyError:
      raise pickle.UnpicklingError(
        f'it asks for {module_name}.{global_name}'
      ) from None


def load(path: Path) -> Any:
  """Reads a pickled dict of byte arrays, bytes, numbers and containers.

  A DataError is raised when the file is damaged or holds other objects.
  """
  try:
    with open(path, 'rb') as file:
      batch = _Unpickler(file, encoding='bytes').load()
    if not isinstance(batch, dict):
      raise pickle.UnpicklingError('it is no dict')
    return {
      key: value.value() if isinstance(value, _Array) else value
      for key, value in batch.items()
    }
  # The file cannot be read, which says nothing of its content.
  except OSError:
    raise
  # Damaged opcodes can raise almost any exception.
  except Exception as error:
    raise errors.DataError(
      f'refused to unpickle: {error}', str(path), 'unpack the archive again'
    ) from error


def dump(path: Path, batch: dict[bytes, Any]) -> None:
  """Writes a batch as `load` reads it."""
  with open(path, 'wb') as file:
    pickle.dump(batch, file, protocol=4)
