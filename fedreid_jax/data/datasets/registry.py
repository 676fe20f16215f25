"""All data sets by name, and the functions that read them."""

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.data import datasets, files
from fedreid_jax.data.datasets.records import Dataset, Record


def _find() -> Iterator[Dataset]:
  """Yields the data sets of the other modules of this package."""
  for name in plugins.available(datasets):
    module = f'{datasets.__name__}.{name}'
    if module != __name__:
      for found in vars(importlib.import_module(module)).values():
        if isinstance(found, Dataset):
          yield found


# A module of this package adds data sets by defining values of `Dataset`.
DATASETS = {
  found.name: found for found in sorted(_find(), key=lambda d: d.name)
}


def get(name: str) -> Dataset:
  """Finds a data set by its name, or raises ConfigError."""
  if name not in DATASETS:
    raise errors.ConfigError(
      f'unknown data set {name!r}', 'dataset', errors.one_of(name, DATASETS)
    )
  return DATASETS[name]


def recognise(paths: Sequence[str]) -> Dataset | None:
  """The data set whose images have all of some paths, None if there is none."""
  for dataset in DATASETS.values() if paths else ():
    if dataset.named and all(named(dataset, path) for path in paths):
      return dataset
  return None


def named(dataset: Dataset, path: str) -> re.Match[str] | None:
  """The match of `Dataset.named`; its group `above` are the folders above."""
  pattern = f'(?P<above>.*/)?{dataset.named}'
  return re.fullmatch(pattern, path, re.IGNORECASE)


def parse(spec: str) -> tuple[Dataset, dict[str, Any]]:
  """Data set and all options of `NAME[:option=value,...]`, or ConfigError."""
  name, _, rest = spec.partition(':')
  given = {}
  for part in filter(None, rest.split(',')):
    option, sign, value = part.partition('=')
    if not sign:
      raise errors.ConfigError(
        f'{part!r} of {spec!r}', 'dataset', 'write NAME:option=value,...'
      )
    given[option] = value
  dataset = get(name)
  return dataset, check_options(dataset, given)


def check_options(dataset: Dataset, given: Mapping[str, Any]) -> dict[str, Any]:
  """All options, with defaults; ConfigError for an unknown option or value."""
  unknown = sorted(set(given) - set(dataset.options))
  if unknown:
    known = ', '.join(dataset.options) or 'none'
    raise errors.ConfigError(
      f'{dataset.name} has no option {unknown[0]!r}',
      'dataset',
      f'options are {known}',
    )
  chosen = {}
  for option, choices in dataset.options.items():
    value = given.get(option, choices[0])
    by_text = {str(choice).lower(): choice for choice in choices}
    if str(value).lower() not in by_text:
      raise errors.ConfigError(
        f'{option}={value!r} of {dataset.name}',
        'dataset',
        f'one of {", ".join(by_text)}',
      )
    chosen[option] = by_text[str(value).lower()]
  return chosen


def locate(
  dataset: Dataset, root: str | os.PathLike, where: str = 'data.root'
) -> Path:
  """Folder of a data set: the root or one below; DataError if there is none."""
  path = files.check_root(root, where)
  # A folder with the name of the data set may hold the folder of its unpacked
  # archive: `ROOT/market1501/Market-1501-v15.09.15`.
  for _ in range(2):
    for name in (*dataset.folders, dataset.name):
      if (path / name).is_dir():
        path = path / name
        break
  return path


def read(dataset: Dataset, folder: Path, **options: Any) -> list[Record]:
  """Reads a data set from the result of `locate`, sorted by path and part.

  Frames are sorted by tracklet and time.

  Raises:
    ConfigError: for an unknown option or value.
    DataError: for files that are not as published.
  """
  chosen = check_options(dataset, options)
  try:
    found = dataset.read(folder, **chosen)
  except errors.DataError as error:
    # A folder above several data sets does not tell which of them is missing.
    raise errors.DataError(
      f'{dataset.title}: {error.what}', error.where, error.fix
    ) from error
  records = sorted(found, key=lambda r: (r.path, r.part))
  for one, two in zip(records, records[1:], strict=False):
    if (one.path, one.part) == (two.path, two.part):
      raise errors.DataError(
        f'{one.path!r} is in {one.split} and {two.split}',
        str(folder),
        'remove it from one list',
      )
  if not records:
    raise errors.DataError('no images', str(folder), 'see docs/datasets.md')
  # Without tracklets the order stays.
  return sorted(records, key=lambda r: r.tracklet)


def open_source(
  root: Path, dataset: Dataset, records: Sequence[Record]
) -> Callable[[Record], bytes | UInt8[np.ndarray, 'H W 3']]:
  """Returns a function that reads the bytes of a file, or pixels for a part.

  It raises ValueError for a missing part, and OSError for an unreadable file.
  """
  # A data set with a container can also come as a folder of image files.
  extract: Any = None
  if dataset.extract and any(record.part for record in records):
    extract = dataset.extract(root)

  def read(record: Record) -> bytes | UInt8[np.ndarray, 'H W 3']:
    if not record.part:
      return (root / record.path).read_bytes()
    try:
      return extract(record)
    except (KeyError, IndexError, SyntaxError) as error:
      raise ValueError(str(error) or type(error).__name__) from error

  return read
