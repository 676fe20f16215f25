"""Writes a published data set once, so that later runs only open it."""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.data import cache
from fedreid_jax.data.benchmark import builder, integrity, prepared
from fedreid_jax.data.benchmark.prepared import Prepared
from fedreid_jax.data.cache import Advance
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.decoder import Decoder


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
    out: folder to write to.
    decoder: settings of the decoder.
    verify: whether to compare the SHA-256 of the files with the recorded
      hashes, and not only sizes and modification times.
    on_build: called with the number of further images that are written.
    on_decode: called with the number of further images that are decoded.

  Raises:
    ConfigError: for an unknown name, option or value, or when
      tensorflow-datasets is not installed.
    DataError: for files that are not as published, images that cannot be
      decoded, and files that changed since they were prepared.
  """
  dataset, options = registry.parse(spec)
  base = Path(out).expanduser().absolute()
  built = builder.folder(base, dataset, options)
  built.parent.mkdir(parents=True, exist_ok=True)
  with cache.exclusive(built):
    if (built / prepared.SOURCES).is_file():
      _check_unchanged(source, built, verify)
    else:
      shutil.rmtree(built, ignore_errors=True)
      _build(dataset, source, base, options, on_build)
  return prepared.open_prepared(base, spec, decoder, on_decode)


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
  # This file is written last and atomically, since a data set without it counts
  # as not built.
  integrity.write(
    built / prepared.SOURCES,
    {
      'digest': integrity.digest(records, hashes),
      'records': records,
      'files': recorded,
      'hashes': [hashes[record.name] for record in records],
    },
  )


def _sha256(path: Path) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _check_unchanged(source: Path, built: Path, verify: bool) -> None:
  recorded = prepared.read_sources(built)['files']
  wrong = changed(source, recorded, verify)
  if wrong:
    raise errors.DataError(
      f'{errors.counted(len(wrong), "file")} changed after being prepared: '
      + ', '.join(wrong[:5]),
      str(source),
      f'restore them, or remove {built} and prepare again',
    )


def changed(
  root: Path, recorded: Mapping[str, Sequence[Any]], verify: bool = False
) -> list[str]:
  """Returns the names of the files that differ from their records.

  Args:
    root: folder of the files.
    recorded: (size in bytes, modification time in ns, SHA-256) by name.
    verify: whether to compare the SHA-256 of the files instead of their
      modification times.
  """
  wrong = []
  for name, (size, mtime, sha) in recorded.items():
    try:
      now = os.stat(root / name)
      same = now.st_size == size and (verify or now.st_mtime_ns == mtime)
      if same and verify:
        same = hashlib.sha256((root / name).read_bytes()).hexdigest() == sha
    except OSError:
      same = False
    if not same:
      wrong.append(name)
  return wrong
