"""Published data sets with decoded pixels on disk, and their labels.

The images are read from the official folder or from a folder that `prepare`
wrote. Both give the same arrays in the same order: by path, then part, and
frames by tracklet and time.
"""

import contextlib
import functools
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int32, Shaped, UInt8

from fedreid_jax import errors
from fedreid_jax.data import cache, files, integrity
from fedreid_jax.data.benchmark import builder
from fedreid_jax.data.cache import Advance
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.datasets.records import Dataset, Record
from fedreid_jax.data.decoder import Decoder, content_hash

SOURCES = 'sources.json'  # the inputs of a built data set


class Prepared(NamedTuple):
  """All images of a data set, memory-mapped."""

  dataset: Dataset
  options: dict[str, Any]  # values of all options
  images: UInt8[np.ndarray, 'M H W ch']
  people: Int32[np.ndarray, ' M']  # as in `Record.person`
  cameras: Int32[np.ndarray, ' M']  # numbers as published
  modalities: Int32[np.ndarray, ' M']  # 0 visible, 1 infrared
  tracklets: Int32[np.ndarray, ' M'] | None  # numbers; None without tracklets
  splits: Shaped[np.ndarray, ' M']  # as in `Record.split`
  names: tuple[str, ...]  # path and part of each image, unique
  files: Shaped[np.ndarray, ' M']  # SHA-256 of file or pixels
  digest: str  # hash of the inputs of the images

  def rows(self, *splits: str) -> Int[np.ndarray, ' rows']:
    """Rows of the images of some splits, ascending."""
    return np.flatnonzero(np.isin(self.splits, splits))

  def files_of(self, *splits: str) -> list[str]:
    """Hashes of the files of some splits."""
    return self.files[self.rows(*splits)].tolist()


def open_prepared(
  root: str | os.PathLike,
  spec: str,
  decoder: Decoder,
  advance: Advance | None = None,
) -> Prepared:
  """Opens a data set and decodes its images if that has not been done.

  Args:
    root: folder written by `prepare`, or the official folder or its parent.
    spec: `NAME[:option=value,...]`.
    advance: called with the number of further images that are decoded.

  Raises:
    ConfigError: for an unknown name, option or value.
    DataError: for files not as published, or images that cannot be decoded.
  """
  dataset, options = registry.parse(spec)
  base = files.check_root(root)
  if built := _find_built(base, dataset, options):
    return _open_built(built, dataset, options, decoder, advance)
  folder = registry.locate(dataset, base)
  records = registry.read(dataset, folder, **options)
  paths = sorted({record.path for record in records})
  listing = list(zip(paths, cache.stat(folder, paths), strict=True))
  made_of = integrity.digest(
    listing, [record.stored for record in records], decoder._asdict()
  )
  read = registry.open_source(folder, dataset, records)
  images, manifest = cache.ensure(
    cache.cache_dir() / 'images' / made_of[:24],
    [record.name for record in records],
    lambda k: read(records[k]),
    decoder,
    str(folder),
    advance,
  )
  kept = [records[k] for k in manifest['kept']]
  hashes = [manifest['sha256'][record.name] for record in kept]
  return _join(dataset, options, images, kept, hashes, made_of)


def check_readable(root: str | os.PathLike, spec: str) -> None:
  """Raises the errors of `open_prepared` that need no image to be decoded."""
  dataset, options = registry.parse(spec)
  base = files.check_root(root)
  if not _find_built(base, dataset, options):
    registry.read(dataset, registry.locate(dataset, base), **options)


def _find_built(
  base: Path, dataset: Dataset, options: dict[str, Any]
) -> Path | None:
  """The folder that `prepare` wrote, None if it has not prepared this set."""
  built = builder.folder(base, dataset, options)
  if (built / SOURCES).is_file():
    return built
  # The folder of the name exists, but has none for these options.
  if built.parent.parent.is_dir():
    raise errors.DataError(
      f'{dataset.name} was not prepared with these options',
      str(base),
      'run `fedreid data prepare` again, with the options',
    )
  return None


def prepare(
  source: Path,
  spec: str,
  out: str | os.PathLike,
  decoder: Decoder,
  verify: bool = False,
  on_build: Advance | None = None,
  on_decode: Advance | None = None,
) -> Prepared:
  """Writes a data set as ArrayRecord files and as an array, and opens it.

  A second call continues an interrupted one, and writes nothing after a
  complete one.

  Args:
    source: official folder of the data set, as `registry.locate` returns it.
    spec: `NAME[:option=value,...]`.
    verify: compares the SHA-256 of the files, not only sizes and times.
    on_build: called with the number of further images that are written.
    on_decode: called with the number of further images that are decoded.

  Raises:
    ConfigError: for an unknown name or option, or without tensorflow-datasets.
    DataError: for files not as published or changed, or unreadable images.
  """
  dataset, options = registry.parse(spec)
  base = Path(out).expanduser().absolute()
  built = builder.folder(base, dataset, options)
  built.parent.mkdir(parents=True, exist_ok=True)
  with cache.exclusive(built):
    if (built / SOURCES).is_file():
      _check_unchanged(source, built, verify)
    else:
      shutil.rmtree(built, ignore_errors=True)
      _build(dataset, source, base, options, on_build)
  return open_prepared(base, spec, decoder, on_decode)


def _build(dataset, source, base, options, advance) -> None:
  records = registry.read(dataset, source, **options)
  paths = sorted({record.path for record in records})
  stats = dict(zip(paths, cache.stat(source, paths), strict=True))
  hashes = builder.build(dataset, source, base, options, advance)
  built = builder.folder(base, dataset, options)
  recorded = {
    path: [
      *stats[path],
      hashes[path][0] if path in hashes else _sha256(source / path),
    ]
    for path in paths
  }
  stored = [record.stored for record in records]
  # This file is written last and atomically, since a data set without it counts
  # as not built.
  integrity.write(
    built / SOURCES,
    {
      'digest': integrity.digest(stored, hashes),
      'records': stored,
      'files': recorded,
      'hashes': [hashes[record.name] for record in records],
    },
  )


def _sha256(path: Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _check_unchanged(source: Path, built: Path, verify: bool) -> None:
  """Compares sizes, and modification times or with `verify` hashes."""
  wrong: list[str] = []
  for name, (size, mtime, sha) in _read_sources(built)['files'].items():
    path, same = source / name, False
    with contextlib.suppress(OSError):
      now = path.stat()
      if now.st_size == size:
        same = _sha256(path) == sha if verify else now.st_mtime_ns == mtime
    if not same:
      wrong.append(name)
  if wrong:
    raise errors.DataError(
      f'{errors.counted(len(wrong), "file")} changed after being prepared: '
      + ', '.join(wrong[:5]),
      str(source),
      f'restore them, or remove {built} and prepare again',
    )


def _read_sources(built: Path) -> dict[str, Any]:
  try:
    return integrity.read(built / SOURCES)
  except ValueError as error:
    raise _damaged(str(error), built) from error


def _damaged(what: str, built: Path) -> errors.IntegrityError:
  return errors.IntegrityError(
    what, str(built), 'remove the folder and prepare again'
  )


def _open_built(
  built: Path,
  dataset: Dataset,
  options: dict[str, Any],
  decoder: Decoder,
  advance: Advance | None,
) -> Prepared:
  sources = _read_sources(built)
  records = [
    Record(path, person, camera, modality, split, *map(tuple, rest))
    for path, person, camera, modality, split, *rest in sources['records']
  ]
  made_of = integrity.digest(sources['digest'], decoder._asdict())
  lock = threading.Lock()
  read_from, written = zip(*sources['hashes'], strict=True)
  # Opened at the first image: arrays that exist need no tensorflow-datasets.
  reader = functools.cache(lambda: _reader(built, records, written))

  def image(k: int) -> bytes:
    # Threads decode in parallel. Reading takes a twentieth of that time, so one
    # lock for it costs little.
    with lock:
      return reader()(k)

  images, manifest = cache.ensure(
    built.with_name(f'{built.name}-images') / made_of[:24],
    [record.name for record in records],
    image,
    decoder,
    str(built.parents[2]),
    advance,
  )
  kept = [records[k] for k in manifest['kept']]
  hashes = [read_from[k] for k in manifest['kept']]
  return _join(dataset, options, images, kept, hashes, made_of)


def _reader(
  built: Path, records: Sequence[Record], written: Sequence[str]
) -> Callable[[int], bytes]:
  """Returns a reader of the k-th file; both raise IntegrityError for damage."""
  # The exceptions of the libraries for damaged files have no common class.
  try:
    splits = builder.open_splits(built)
  except errors.FedReIDError:
    raise
  except Exception as error:
    raise _damaged(str(error), built) from error
  # Each split is stored separately, in the order of the records.
  place, sizes = [], dict.fromkeys(splits, 0)
  for record in records:
    split = builder.split_name(record.split)
    place.append((split, sizes[split]))
    sizes[split] += 1

  def read(k: int) -> bytes:
    split, row = place[k]
    try:
      example = splits[split][row]
      image = example['image']
    except Exception as error:
      raise _damaged(str(error), built) from error
    name = example['name']
    name = name.decode() if isinstance(name, bytes) else name
    if name != records[k].name or content_hash(image) != written[k]:
      raise _damaged(f'{records[k].name} is not as it was written', built)
    return image

  return read


def _join(
  dataset: Dataset,
  options: dict[str, Any],
  images: UInt8[np.ndarray, 'M H W ch'],
  records: Sequence[Record],
  hashes: Sequence[str],
  made_of: str,
) -> Prepared:
  people, cameras, modalities = (
    np.asarray([getattr(r, field) for r in records], np.int32)
    for field in ('person', 'camera', 'modality')
  )
  tracks = [record.tracklet[0] for record in records if record.tracklet]
  return Prepared(
    dataset,
    options,
    images,
    people,
    cameras,
    modalities,
    np.asarray(tracks, np.int32) if tracks else None,
    np.asarray([r.split for r in records]),
    tuple(r.name for r in records),
    np.asarray(hashes),
    made_of,
  )
