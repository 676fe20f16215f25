"""Builders of tensorflow-datasets for the data sets, without TensorFlow.

A builder reads manual data, writes ArrayRecord files, and has one configuration
per choice of options. Both `tfds.builder_from_directory` and `as_data_source`
read the files.
"""

import contextlib
import importlib
import io
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import plugins
from fedreid_jax.data import decoder
from fedreid_jax.data.cache import Advance
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.datasets.records import (
  MODALITIES,
  Dataset,
  Record,
)

VERSION = '1.0.0'
# By `Record.name`: SHA-256 of the data read and of the data written.
Hashes = dict[str, tuple[str, str]]


def modules() -> Any:
  """Imports tensorflow_datasets; raises ConfigError if a package is missing."""
  try:
    # Packages that tensorflow-datasets needs for writing and imports late.
    for name in ('importlib_resources', 'array_record'):
      importlib.import_module(name)
    return importlib.import_module('tensorflow_datasets')
  except ImportError as error:
    raise errors.ConfigError(
      'tensorflow-datasets is not installed',
      str(error),
      plugins.install_command('datasets'),
    ) from error


def split_name(split: str) -> str:
  """Name of a split in tensorflow-datasets, without '+'."""
  return split.replace('+', '_and_')


def folder(out: Path, dataset: Dataset, options: Mapping[str, Any]) -> Path:
  """Folder of a built data set under `out`."""
  return out / _name(dataset) / _config(options) / VERSION


def _name(dataset: Dataset) -> str:
  # tensorflow-datasets requires names that begin with a letter.
  return 'reid_' + re.sub(r'\W', '_', dataset.name)


def _config(options: Mapping[str, Any]) -> str:
  words = [f'{key}_{value}' for key, value in sorted(options.items())]
  return re.sub(r'[^\w.]', '_', '-'.join(words).lower()) or 'default'


def build(
  dataset: Dataset,
  root: Path,
  out: Path,
  options: Mapping[str, Any],
  advance: Advance | None = None,
) -> Hashes:
  """Writes a data set under `out` and returns the hashes of its images.

  Raises:
    ConfigError: when tensorflow-datasets is not installed.
    DataError: for files that are not as published.
  """
  target = folder(out, dataset, options)
  # An interrupted build leaves its files under this name.
  for leftover in target.parent.glob(f'incomplete.*_{VERSION}'):
    shutil.rmtree(leftover, ignore_errors=True)
  tfds = modules()
  hashes: Hashes = {}
  cls = _make(tfds, dataset, options, hashes, advance)
  builder = cls(data_dir=str(out), file_format='array_record')
  tfds.disable_progress_bar()
  config = tfds.download.DownloadConfig(manual_dir=str(root))
  try:
    with (
      tempfile.TemporaryDirectory() as downloads,  # nothing is downloaded
      contextlib.redirect_stdout(io.StringIO()),  # prints the disk space
    ):
      builder.download_and_prepare(
        download_dir=downloads, download_config=config
      )
  # tensorflow-datasets adds text to exceptions.
  except errors.FedReIDError as error:
    raise type(error)(error.what, error.where, error.fix) from error
  return hashes


def _make(
  tfds: Any,
  dataset: Dataset,
  options: Mapping[str, Any],
  hashes: Hashes,
  advance: Advance | None,
) -> type:
  """Returns a builder class that adds the hash of each image to `hashes`."""

  def info(self: Any) -> Any:
    features = {
      'image': tfds.features.Image(shape=(None, None, 3)),
      'person': tfds.features.Scalar(np.int64),
      'camera': tfds.features.Scalar(np.int64),
      'modality': tfds.features.ClassLabel(names=list(MODALITIES)),
      'name': tfds.features.Text(),
    }
    return tfds.core.DatasetInfo(
      builder=self,
      description=f'{dataset.title}. {dataset.note}',
      features=tfds.features.FeaturesDict(features),
      disable_shuffling=True,  # keeps the canonical order of the records
    )

  def split_generators(self: Any, dl_manager: Any) -> dict[str, Any]:
    root = Path(dl_manager.manual_dir)
    records = registry.read(dataset, root, **options)
    read = registry.open_source(root, dataset, records)
    splits: dict[str, list[Record]] = {}
    for record in records:
      splits.setdefault(split_name(record.split), []).append(record)
    return {
      split: self._generate_examples(read, own) for split, own in splits.items()
    }

  def generate_examples(
    self: Any, read: Any, records: list[Record]
  ) -> Iterator[tuple[int, dict[str, Any]]]:
    del self
    for row, record in enumerate(records):
      try:
        data = read(record)
      except (ValueError, OSError) as error:
        what = f'{record.name} cannot be read: {error}'
        raise errors.DataError(what, dataset.title, 'fix the file') from error
      image = decoder.colour_file(data)
      hashes[record.name] = (
        decoder.content_hash(data),
        decoder.content_hash(image),
      )
      fields = ('person', 'camera', 'modality', 'name')
      yield row, {'image': image, **{f: getattr(record, f) for f in fields}}
      if advance:
        advance(1)

  return type(
    'Builder',
    (tfds.core.GeneratorBasedBuilder,),
    {
      'name': _name(dataset),
      'VERSION': tfds.core.Version(VERSION),
      'BUILDER_CONFIGS': [tfds.core.BuilderConfig(name=_config(options))],
      'MANUAL_DOWNLOAD_INSTRUCTIONS': f'Unpack {dataset.title}, described on '
      f'{dataset.page}, and give its folder.',
      '_info': info,
      '_split_generators': split_generators,
      '_generate_examples': generate_examples,
    },
    skip_registration=True,  # a name may be used again with other options
  )


def open_splits(built: Path) -> dict[str, Any]:
  """Opens splits of encoded files; ConfigError without tensorflow-datasets."""
  tfds = modules()
  source = tfds.builder_from_directory(str(built))
  return source.as_data_source(decoders={'image': tfds.decode.SkipDecoding()})
