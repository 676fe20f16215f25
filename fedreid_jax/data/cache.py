"""Decodes image files into one uint8 array on disk, once and in parallel.

The array is stored under a digest of its inputs: the name, size and
modification time of every file, and the settings of the decoder. Its manifest
holds the SHA-256 of every input file and of the array.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.data import decoder as decoding
from fedreid_jax.data import files, heic, integrity
from fedreid_jax.data.decoder import Decoder, Pixels

SHOWN = 20  # names of bad files in a message
_TASK = 64  # images that a thread decodes at a time

Advance = Callable[[int], None]


def cache_dir() -> Path:
  """Folder of this package in the user's cache."""
  base = os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'
  return Path(base) / 'fedreid_jax'


def stat(root: Path, files: Sequence[str]) -> list[tuple[int, int]]:
  """Size in bytes and modification time in ns; DataError for a missing file."""
  try:
    stats = [os.stat(root / name) for name in files]
  except OSError as error:
    raise errors.DataError(
      f'file is missing: {error.strerror}', str(error.filename), 'restore it'
    ) from error
  return [(s.st_size, s.st_mtime_ns) for s in stats]


def build(
  root: Path, files: Sequence[str], decoder: Decoder
) -> tuple[UInt8[np.ndarray, 'M H W ch'], dict[str, Any], str]:
  """Decodes files below a root, or opens their array in the user's cache.

  The result is (memory-mapped images, manifest of `ensure`, digest).

  Raises:
    DataError: naming the files that cannot be decoded.
  """
  listing = [[n, *s] for n, s in zip(files, stat(root, files), strict=True)]
  # An array without HEIC images is not used when they can be read.
  more = [heic.FORMAT] if heic.installed() and heic.split(files)[0] else []
  # Earlier arrays of fast decoding have turned images of another size.
  more += ['turned'] if decoder.fast else []
  made_of = integrity.digest(listing, decoder._asdict(), *more)
  folder = cache_dir() / 'images' / made_of[:24]
  images, manifest = ensure(
    folder, files, lambda k: (root / files[k]).read_bytes(), decoder, str(root)
  )
  return images, manifest, made_of


def ensure(
  folder: Path,
  names: Sequence[str],
  read: Callable[[int], bytes | Pixels],
  decoder: Decoder,
  where: str,
  advance: Advance | None = None,
) -> tuple[UInt8[np.ndarray, 'M H W ch'], dict[str, Any]]:
  """Opens the array of a folder and decodes the images first if it is missing.

  A damaged array is decoded again. Lines on stderr report this and the number
  of images that are left out.

  Args:
    folder: folder of `images.npy` and `manifest.json`.
    names: names of the images, for the manifest and messages.
    read: gives the file or array at a position; called from threads.
    where: source of the images, for messages.
    advance: called with the number of further images that are done.

  Returns:
    (memory-mapped images, manifest). The manifest has the entries `kept` (the
    positions of the images that could be read), `sha256` (hash of the file of
    each of them, by name), `pictures` (the `picture_hash` of each of them;
    arrays of earlier versions have none), `left_out` (names of the others with
    reasons), `decoder`, and `array` (the hash of images.npy).

  Raises:
    DataError: naming the images that cannot be decoded.
  """
  found = _open(folder)
  if isinstance(found, str):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(folder):
      # Another process may have written the array while this one waited.
      found = _open(folder)
      if isinstance(found, str):
        if found:
          _say(f'{folder} is damaged ({found}) and is made again')
        _write(folder, names, read, decoder, where, advance)
        found = _open(folder)
  if isinstance(found, str):
    raise errors.ResourceError(
      f'data read back differs from data written: {found}',
      str(folder),
      'check the disk',
    )
  left_out = found[1]['left_out']
  if left_out:
    kept = {*found[1]['kept']}
    kinds = files.kinds(name for k, name in enumerate(names) if k not in kept)
    _say(
      f'{len(left_out)} of {errors.counted(len(names), "image")} of {where} '
      'cannot be read and '
      f'{"is" if len(left_out) == 1 else "are"} left out ({kinds}): '
      + '; '.join(left_out[:SHOWN])
    )
  return found


def _say(what: str) -> None:
  print(errors.printable(f'note: {what}'), file=sys.stderr)


def _open(
  folder: Path,
) -> tuple[UInt8[np.ndarray, 'M H W ch'], dict[str, Any]] | str:
  """Opens a folder; returns a reason if it is damaged, '' if it is missing."""
  if not folder.is_dir():
    return ''
  try:
    manifest = integrity.read(folder / 'manifest.json')
    integrity.check(folder / 'images.npy', manifest['array'])
    images = np.load(folder / 'images.npy', mmap_mode='r', allow_pickle=False)
  except FileNotFoundError as error:
    return f'no {Path(error.filename).name}'
  except ValueError as error:
    return str(error)
  # The name of the folder is a digest of the inputs, so that a renamed folder
  # would pass for the images of other files.
  return (images, manifest) if manifest['folder'] == folder.name else 'renamed'


def exclusive(folder: Path) -> filelock.BaseFileLock:
  """Lock for one process or thread, released when a process ends."""
  return filelock.FileLock(folder.with_name(folder.name + '.lock'))


def _write(folder, names, read, decoder, where, advance) -> None:
  # The folder is renamed when it is complete, so that no reader sees a part of
  # the images. An interrupted run can leave this folder behind.
  part = folder.with_name(folder.name + '.part')
  for leftover in (part, folder):
    shutil.rmtree(leftover, ignore_errors=True)
  part.mkdir()
  try:
    shape = len(names), decoder.height, decoder.width, decoder.channels
    whole = _reserve(part / 'images.npy', shape)
    hashes, pictures, bad = _decode_all(whole, names, read, decoder, advance)
    kinds = files.kinds(
      name for name, sha in zip(names, hashes, strict=True) if not sha
    )
    if bad and decoder.on_bad_image == 'error':
      raise errors.DataError(
        f'{len(bad)} of {errors.counted(len(names), "image")} cannot be read '
        f'({kinds}): ' + '; '.join(sorted(bad)[:SHOWN]),
        where,
        "fix them, or set data.on_bad_image='skip'",
      )
    kept = [k for k, sha in enumerate(hashes) if sha]
    if bad:
      # The rows of unreadable images are only known when all are decoded.
      fewer = _reserve(part / 'kept.npy', (len(kept), *shape[1:]))
      for place, k in enumerate(kept):
        fewer[place] = whole[k]
      fewer.flush()
      (part / 'kept.npy').replace(part / 'images.npy')
    whole.flush()
    manifest = {
      'kept': kept,
      'sha256': {names[k]: hashes[k] for k in kept},
      'pictures': [pictures[k] for k in kept],
      # Threads append the names in any order.
      'left_out': sorted(bad),
      'decoder': decoder._asdict(),
      'array': integrity.add(part / 'images.npy'),
      'folder': folder.name,
    }
    integrity.write(part / 'manifest.json', manifest)
    part.rename(folder)
  finally:
    shutil.rmtree(part, ignore_errors=True)


def _reserve(path: Path, shape: tuple[int, ...]) -> np.memmap:
  array = np.lib.format.open_memmap(path, 'w+', np.uint8, shape)
  if hasattr(os, 'posix_fallocate') and array.nbytes:
    # A full disk must be an error here and not a bus error at a later store.
    with errors.on_disk(path), open(path, 'r+b') as file:
      os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
  return array


def _decode_all(
  whole: UInt8[np.ndarray, 'M H W ch'],
  names,
  read,
  decoder: Decoder,
  advance: Advance | None,
) -> tuple[list[str | None], list[str], list[str]]:
  """Fills the array; returns hashes of files and pictures, and bad names.

  The hashes of an unreadable image are None and ''.
  """
  hashes: list[str | None] = [None] * len(names)
  pictures = [''] * len(names)
  bad: list[str] = []

  def some(start: int) -> int:
    stop = min(start + _TASK, len(names))
    for k in range(start, stop):
      try:
        data = read(k)
        whole[k] = decoding.decode(data, decoder)
        hashes[k] = found = decoding.content_hash(data)
        pictures[k] = decoding.picture_hash(whole[k], found)
      except (ValueError, OSError) as error:
        bad.append(f'{names[k]} ({error})')
    return stop - start

  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for done in pool.map(some, range(0, len(names), _TASK)):
      if advance:
        advance(done)
  return hashes, pictures, bad
