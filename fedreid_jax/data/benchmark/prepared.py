"""Published data sets with decoded pixels on disk, and their labels.

The images are read from the official folder or from a folder that `prepare`
wrote. Both give the same arrays in the same order: by path, then part.
"""

import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int32, Shaped, UInt8

from fedreid_jax import errors
from fedreid_jax.data import cache, files
from fedreid_jax.data.benchmark import builder, integrity
from fedreid_jax.data.cache import Advance
from fedreid_jax.data.datasets import registry, source
from fedreid_jax.data.datasets.records import Dataset, Record
from fedreid_jax.data.decoder import Decoder, content_hash

SOURCES = 'sources.json'  # the inputs of a built data set


class Prepared(NamedTuple):
  """All images of a data set.

  Attributes:
    dataset: description of the data set.
    options: values of all of its options.
    images: pixels, memory-mapped.
    people: person of each image, a number as in `Record.person`.
    cameras: camera of each image, a number as published.
    modalities: 0 visible, 1 infrared.
    splits: strings as in `Record.split`.
    names: path and part of each image, `[M]`, unique.
    files: SHA-256 of the file or pixels of each image, strings.
    digest: hash of the inputs of the images.
  """

  dataset: Dataset
  options: dict[str, Any]
  images: UInt8[np.ndarray, 'M H W ch']
  people: Int32[np.ndarray, ' M']
  cameras: Int32[np.ndarray, ' M']
  modalities: Int32[np.ndarray, ' M']
  splits: Shaped[np.ndarray, ' M']
  names: tuple[str, ...]
  files: Shaped[np.ndarray, ' M']
  digest: str

  def rows(self, *splits: str) -> Int[np.ndarray, ' rows']:
    """Returns the rows of the images of some splits, ascending."""
    return np.flatnonzero(np.isin(self.splits, splits))


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
    decoder: settings of the decoder.
    advance: called with the number of further images that are decoded.

  Raises:
    ConfigError: for an unknown name, option or value.
    DataError: for files that are not as published, and for images that cannot
      be decoded.
  """
  dataset, options = registry.parse(spec)
  base = files.check_root(root)
  built = builder.folder(base, dataset, options)
  if (built / SOURCES).is_file():
    return _open_built(base, dataset, options, decoder, advance)
  # The folder of the name exists, but has none for these options.
  if built.parent.parent.is_dir():
    raise errors.DataError(
      f'{dataset.name} was not prepared with these options',
      str(base),
      'run `fedreid data prepare` again, with the options',
    )
  folder = registry.locate(dataset, base)
  records = registry.read(dataset, folder, **options)
  paths = sorted({record.path for record in records})
  listing = list(zip(paths, cache.stat(folder, paths), strict=True))
  made_of = integrity.digest(listing, records, decoder._asdict())
  read = source.open_source(folder, dataset, records)
  images, manifest = cache.ensure(
    cache.cache_dir() / 'images' / made_of[:24],
    [record.name for record in records],
    lambda k: read(records[k]),
    decoder,
    str(folder),
    advance,
  )
  kept = manifest['kept']
  hashes = {k: manifest['sha256'][records[k].name] for k in kept}
  return _join(dataset, options, images, records, kept, hashes, made_of)


def read_sources(built: Path) -> dict[str, Any]:
  """Returns the inputs of a built data set.

  Returns:
    `digest`, `records`, `files`: (size, modification time, SHA-256) by path,
    and `hashes`: SHA-256 of the data read and written for each record.

  Raises:
    IntegrityError: when the file with these entries is damaged.
  """
  try:
    return integrity.read(built / SOURCES)
  except ValueError as error:
    raise _damaged(str(error), built) from error


def _damaged(what: str, built: Path) -> errors.IntegrityError:
  return errors.IntegrityError(
    what, str(built), 'remove the folder and prepare again'
  )


def _open_built(base, dataset, options, decoder, advance) -> Prepared:
  """Opens the arrays beside a built data set."""
  built = builder.folder(base, dataset, options)
  sources = read_sources(built)
  records = [
    Record(path, person, camera, modality, split, tuple(part))
    for path, person, camera, modality, split, part in sources['records']
  ]
  made_of = integrity.digest(sources['digest'], decoder._asdict())
  lock = threading.Lock()
  read_from, written = zip(*sources['hashes'], strict=True)
  # Opened at the first image: arrays that exist need no tensorflow-datasets.
  reader = functools.cache(
    lambda: _reader(base, dataset, options, records, written)
  )

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
    str(base),
    advance,
  )
  return _join(
    dataset, options, images, records, manifest['kept'], read_from, made_of
  )


def _reader(
  base, dataset, options, records: Sequence[Record], written: Sequence[str]
):
  """Returns a function `(k) -> file` that reads the k-th record.

  Raises:
    IntegrityError: for damaged files; the returned function raises it, too.
  """
  built = builder.folder(base, dataset, options)
  # The exceptions of the libraries for damaged files have no common class.
  try:
    splits = builder.open_splits(base, dataset, options)
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


def _join(dataset, options, images, records, kept, hashes, made_of) -> Prepared:
  own = [records[k] for k in kept]
  people, cameras, modalities = (
    np.asarray([getattr(r, field) for r in own], np.int32)
    for field in ('person', 'camera', 'modality')
  )
  return Prepared(
    dataset,
    options,
    images,
    people,
    cameras,
    modalities,
    np.asarray([r.split for r in own]),
    tuple(r.name for r in own),
    np.asarray([hashes[k] for k in kept]),
    made_of,
  )
