"""All data sets by name, and the function that reads them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.data.datasets import (
  caviar,
  cifar10,
  csv_manifest,
  cuhk01,
  cuhk02,
  cuhk03,
  cuhk_sysu,
  dukemtmc,
  grid,
  ilids,
  ilids_vid,
  llcm,
  market1501,
  msmt17,
  pes3d,
  prid2011,
  regdb,
  sysu_mm01,
  viper,
)
from fedreid_jax.data.datasets.records import Dataset, Record

_ALL = (
  market1501.DATASET,
  dukemtmc.DATASET,
  msmt17.DATASET,
  cuhk03.NEW,
  cuhk03.CLASSIC,
  cuhk01.DATASET,
  cuhk02.DATASET,
  prid2011.DATASET,
  viper.DATASET,
  pes3d.DATASET,
  ilids.DATASET,
  ilids_vid.DATASET,
  caviar.DATASET,
  grid.DATASET,
  cuhk_sysu.DATASET,
  sysu_mm01.DATASET,
  regdb.DATASET,
  llcm.DATASET,
  cifar10.DATASET,
  csv_manifest.DATASET,
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def get(name: str) -> Dataset:
  """Returns a data set by its name.

  Raises:
    ConfigError: for an unknown name.
  """
  if name not in DATASETS:
    raise errors.ConfigError(
      f'unknown data set {name!r}', 'dataset', f'one of {", ".join(DATASETS)}'
    )
  return DATASETS[name]


def parse(spec: str) -> tuple[Dataset, dict[str, Any]]:
  """Returns data set and options of `NAME[:option=value,...]`.

  Options that are not given have their defaults.

  Raises:
    ConfigError: for an unknown name, option or value.
  """
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
  """Returns all options, with defaults for those not given.

  Values may be given as text.

  Raises:
    ConfigError: for an unknown option or value.
  """
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
  """Returns the folder of a data set: the root, or one of its name in it.

  A folder of the data set's name may itself hold the folder of its unpacked
  archive: `ROOT/market1501/Market-1501-v15.09.15`. All other functions take the
  returned folder.

  Raises:
    DataError: when the folder is missing or an archive.
  """
  path = files.check_root(root, where)
  for _ in range(2):
    for name in (*dataset.folders, dataset.name):
      if (path / name).is_dir():
        path = path / name
        break
  return path


def read(dataset: Dataset, folder: Path, **options: Any) -> list[Record]:
  """Reads a data set, sorted by path and part.

  Args:
    dataset: its description.
    folder: of its archive, as `locate` returns it.
    **options: as in `Dataset.options`.

  Raises:
    ConfigError: for an unknown option or value.
    DataError: for files that are not as published.
  """
  chosen = check_options(dataset, options)
  records = sorted(
    dataset.read(folder, **chosen), key=lambda r: (r.path, r.part)
  )
  for one, two in zip(records, records[1:], strict=False):
    if (one.path, one.part) == (two.path, two.part):
      raise errors.DataError(
        f'{one.path!r} is in {one.split} and {two.split}',
        str(folder),
        'remove it from one list',
      )
  if not records:
    raise errors.DataError('no images', str(folder), 'see docs/datasets.md')
  return records
