"""HEIC images, as telephones save them, by the optional package pillow-heif.

The reader is registered with Pillow when the first such file is met, so that
programs without HEIC files do not import it.
"""

import functools
import importlib
import importlib.util
from collections.abc import Iterable

from fedreid_jax import errors
from fedreid_jax.core import plugins

ENDS = ('.heic', '.heif', '.hif')
FORMAT = 'HEIF'  # Pillow's name
HEAD = 12  # bytes that show the format
# Major brands of images of HEVC, or of any kind (ISO/IEC 23008-12).
_BRANDS = (b'heic', b'heix', b'heim', b'heis', b'hevc', b'hevx', b'mif1')
SHOWN = 20  # names in a note


def installed() -> bool:
  """Returns whether the package can be imported."""
  return importlib.util.find_spec('pillow_heif') is not None


def is_heic(head: bytes) -> bool:
  """Whether the first `HEAD` bytes of a file are those of HEIC."""
  return head[4:8] == b'ftyp' and head[8:12] in _BRANDS


def register() -> None:
  """Lets Pillow read HEIC; OSError with the remedy without the package."""
  try:
    _register()
  except ImportError as error:
    remedy = plugins.install_command('heic')
    raise OSError(f'HEIC needs another package: {remedy}') from error


@functools.cache
def _register() -> None:
  importlib.import_module('pillow_heif').register_heif_opener()


def split(names: Iterable[str]) -> tuple[list[str], list[str]]:
  """Names of HEIC files, sorted, and all others."""
  found: list[str] = []
  others: list[str] = []
  for name in names:
    (found if name.lower().endswith(ENDS) else others).append(name)
  return sorted(found), others


def skipped(names: list[str]) -> str:
  """Says that HEIC files were skipped, and how they would be read."""
  shown = ', '.join(names[:SHOWN]) + (', ...' if len(names) > SHOWN else '')
  number = errors.counted(len(names), 'HEIC file')
  return f'{number} skipped: {shown}; {plugins.install_command("heic")}'
