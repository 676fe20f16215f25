"""A published data set, decoded: pixels on disk and who and where each shows.

The images come from the official folder, or from what `prepare` wrote to. Both
give the same arrays in the same order: by path, then part.
"""

import functools
import json
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import builder, cache, files
from fedreid_jax.data.cache import Advance
from fedreid_jax.data.datasets import registry, source
from fedreid_jax.data.datasets.records import Dataset, Record
from fedreid_jax.data.decoder import Decoder

SOURCES = 'sources.json'  # in a built data set: what it was made from


class Prepared(NamedTuple):
  """All images of a data set.

  Attributes:
    dataset: its description.
    options: all of them.
    images: uint8 `[M, H, W, ch]`, memory-mapped.
    people: numbers as in `Record.person`, int32 `[M]`.
    cameras: numbers as published, int32 `[M]`.
    modalities: 0 visible, 1 infrared, int32 `[M]`.
    splits: as in `Record.split`, str `[M]`.
    names: path and part of each image, `M` of them, unique.
    digest: hash of what the images were made from.
  """

  dataset: Dataset
  options: dict[str, Any]
  images: np.ndarray
  people: np.ndarray
  cameras: np.ndarray
  modalities: np.ndarray
  splits: np.ndarray
  names: tuple[str, ...]
  digest: str

  def rows(self, *splits: str) -> np.ndarray:
    """Returns positions of the images of some splits, ascending."""
    return np.flatnonzero(np.isin(self.splits, splits))


def open_prepared(
  root: str | os.PathLike,
  spec: str,
  decoder: Decoder,
  advance: Advance | None = None,
) -> Prepared:
  """Opens a data set, after decoding it when nobody did before.

  Args:
    root: what `prepare` wrote to, or the official folder or the one above.
    spec: `NAME[:option=value,...]`.
    decoder: how to decode.
    advance: told how many more images are decoded.

  Raises:
    ConfigError: for an unknown name, option or value.
    DataError: for anything in the folder that is not as published, and for
      images that cannot be decoded.
  """
  dataset, options = registry.parse(spec)
  base = files.check_root(root)
  built = builder.folder(base, dataset, options)
  if (built / SOURCES).is_file():
    return _open_built(base, dataset, options, decoder, advance)
  if built.parent.parent.is_dir():
    raise errors.DataError(
      f'{dataset.name} was not prepared with these options',
      str(base),
      'run launchers.data prepare again, with the options',
    )
  folder = registry.locate(dataset, base)
  records = registry.read(dataset, folder, **options)
  paths = sorted({record.path for record in records})
  listing = list(zip(paths, cache.stat(folder, paths), strict=True))
  made_of = cache.digest(listing, records, decoder._asdict())
  read = source.open_source(folder, dataset, records)
  images, manifest = cache.ensure(
    cache.cache_dir() / 'images' / made_of[:24],
    [record.name for record in records],
    lambda k: read(records[k]),
    decoder,
    str(folder),
    advance,
  )
  return _join(dataset, options, images, records, manifest['kept'], made_of)


def _open_built(base, dataset, options, decoder, advance) -> Prepared:
  """Opens the arrays beside a built data set."""
  built = builder.folder(base, dataset, options)
  sources = json.loads((built / SOURCES).read_text())
  records = [
    Record(path, person, camera, modality, split, tuple(part))
    for path, person, camera, modality, split, part in sources['records']
  ]
  made_of = cache.digest(sources['digest'], decoder._asdict())
  lock = threading.Lock()
  reader = functools.cache(lambda: _reader(base, dataset, options, records))

  def image(k: int) -> bytes:
    with lock:  # a twentieth of the time of decoding
      return reader()(k)

  images, manifest = cache.ensure(
    built.with_name(f'{built.name}-images') / made_of[:24],
    [record.name for record in records],
    image,
    decoder,
    str(base),
    advance,
  )
  return _join(dataset, options, images, records, manifest['kept'], made_of)


def _reader(base, dataset, options, records: Sequence[Record]):
  """Returns `(k) -> file` of the records of a built data set."""
  splits = builder.open_splits(base, dataset, options)
  place, sizes = [], dict.fromkeys(splits, 0)
  for record in records:
    split = builder.split_name(record.split)
    place.append((split, sizes[split]))
    sizes[split] += 1

  def read(k: int) -> bytes:
    split, row = place[k]
    example = splits[split][row]
    name = example['name']
    if (name.decode() if isinstance(name, bytes) else name) != records[k].name:
      raise errors.DataError(
        f'{name!r} is not where it was written', str(base), 'prepare again'
      )
    return example['image']

  return read


def _join(dataset, options, images, records, kept, made_of) -> Prepared:
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
    made_of,
  )
