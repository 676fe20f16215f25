"""Checks of a data set on disk before training."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.data import decoder, files, protocols
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.datasets.records import (
  LEARN,
  TEST,
  Count,
  Dataset,
  Record,
)

SHOWN = 5  # names in a finding
_TASK = 64  # files that a thread checks at a time


class Finding(NamedTuple):
  """One problem of a data set."""

  is_error: bool  # else a notice
  what: str  # description in one line


class Row(NamedTuple):
  """Counts of a split on disk and as published (None if not published)."""

  split: str
  found: Count
  expected: Count | None


class Report(NamedTuple):
  """Counts and findings of a data set, and numbers of its unused files."""

  rows: list[Row]
  findings: list[Finding]
  skipped: str  # numbers of other files, as `files.kinds` describes them


def examine(
  dataset: Dataset,
  folder: Path,
  options: Mapping[str, Any],
  deep: bool = False,
  max_pixels: int = decoder.MAX_PIXELS,
) -> Report:
  """Compares a data set with the published counts and checks every file.

  `folder` is the result of `registry.locate`, and `options` has all options.
  `deep` decodes all images and compares their contents.

  Raises:
    ConfigError: for an unknown option or value.
    DataError: when the folder cannot be read.
  """
  records = registry.read(dataset, folder, **options)
  splits: dict[str, list[Record]] = defaultdict(list)
  for record in records:
    splits[record.split].append(record)
  rows, findings = _count(splits, dataset.expected(options))
  # A file with parts is a container of arrays, or an image such as a scene.
  paths = sorted(
    {r.path for r in records if r.path.lower().endswith(files.IMAGES)}
    | {r.path for r in records if not r.part}
  )
  findings += look(folder, paths, max_pixels)
  if deep:
    findings += _decode(dataset, folder, records, max_pixels)
  if dataset.protocol in protocols.PROTOCOLS:
    protocol = protocols.PROTOCOLS[dataset.protocol]
    findings += _leaks(splits, dataset.nobody) + _matches(splits, protocol)
  findings.sort(key=lambda f: not f.is_error)
  used = {record.path for record in records}
  return Report(rows, findings, files.count_others(folder, used))


def check(report: Report, root: str | os.PathLike) -> None:
  """Raises DataError with the number of errors, and the first of them."""
  wrong = [finding.what for finding in report.findings if finding.is_error]
  if wrong:
    raise errors.DataError(
      f'{errors.counted(len(wrong), "error")}, first: {wrong[0]}',
      str(root),
      'fix the folder',
    )


def _pick(
  splits: Mapping[str, list[Record]], names: Sequence[str]
) -> list[Record]:
  return [r for name in names for r in splits.get(name, ())]


def _count(
  splits: Mapping[str, list[Record]], expected: Mapping[str, Count]
) -> tuple[list[Row], list[Finding]]:
  rows: list[Row] = []
  findings: list[Finding] = []
  for split in [*expected, *(s for s in splits if s not in expected)]:
    own = splits.get(split, [])
    found = Count(
      len(own), len({r.person for r in own}), len({r.camera for r in own})
    )
    published = expected.get(split)
    rows.append(Row(split, found, published))
    if not own:
      findings.append(Finding(True, f'{split} is empty'))
    for what, is_, should in zip(
      Count._fields, found, published or (), strict=False
    ):
      if own and should is not None and is_ != should:
        what = f'{split} has {is_:,} {what}, published are {should:,}'
        findings.append(Finding(False, what))
  return rows, findings


def _leaks(
  splits: Mapping[str, list[Record]], nobody: Sequence[int]
) -> list[Finding]:
  learnt, tested = (
    {record.person for record in _pick(splits, names)}
    for names in (LEARN, TEST)
  )
  both = sorted(learnt & tested - {*nobody})
  return named(True, 'persons in train and test', both)


def _matches(
  splits: Mapping[str, list[Record]], protocol: protocols.Protocol
) -> list[Finding]:
  """Finds queries without a match, and persons who can have none."""
  cameras: dict[int, set[int]] = defaultdict(set)
  for r in _pick(splits, LEARN):
    cameras[r.person].add(r.camera)
  lonely = sorted(person for person, own in cameras.items() if len(own) == 1)
  # With one camera for all, nothing else is expected.
  if len({camera for own in cameras.values() for camera in own}) < 2:
    lonely = []
  findings = named(False, 'training persons seen by one camera only', lonely)
  gallery: dict[int, set[int]] = defaultdict(set)
  for r in _pick(splits, TEST[1:]):
    gallery[r.person].add(r.camera)
  queries = _pick(splits, (TEST[0], TEST[2]))
  invalid = [
    r.path for r in queries if not gallery[r.person] - _hidden(r, protocol)
  ]
  # Nothing can be tested only if no query has a match.
  nothing = len(invalid) == len(queries)
  findings += named(nothing, 'queries without a match', invalid)
  images = Counter(r.person for r in splits.get('images', ()))
  single = [person for person, number in images.items() if number < 2]
  return findings + named(
    len(single) == len(images), 'persons with one image, never tested', single
  )


def _hidden(query: Record, protocol: protocols.Protocol) -> set[int]:
  """Cameras whose images are hidden from a query."""
  hidden = {two for one, two in protocol.common_places if one == query.camera}
  return hidden | {query.camera} if protocol.same_camera else hidden


def named(is_error: bool, what: str, names: Sequence[Any]) -> list[Finding]:
  """Makes a finding with the first `SHOWN` names, none without names."""
  if not names:
    return []
  more = f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''
  shown = ', '.join(str(name) for name in names[:SHOWN])
  return [Finding(is_error, f'{what}, {len(names)}: {shown}{more}')]


def _in_threads(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
  """Results of `work` other than None, in the order of the items."""

  def some(start: int) -> list[Any]:
    return [work(item) for item in items[start : start + _TASK]]

  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    tasks = pool.map(some, range(0, len(items), _TASK))
    return [one for task in tasks for one in task if one is not None]


def look(
  root: Path, paths: Sequence[str], max_pixels: int, deep: bool = False
) -> list[Finding]:
  """Checks the first and last bytes of files, and decodes doubtful ones.

  `deep` decodes all.
  """
  # The pixels are not used, only whether they can be decoded.
  small = decoder.Decoder(8, 8, max_pixels=max_pixels)

  def one(path: str) -> tuple[bool, str] | None:
    try:
      doubt = decoder.doubt(root / path)
      if deep or doubt not in ('', decoder.RENAMED):
        decoder.decode((root / path).read_bytes(), small)
      if doubt == decoder.RENAMED:
        return False, path
    except (OSError, ValueError) as error:
      return True, f'{path} ({error})'
    return None

  seen = _in_threads(one, paths)
  bad, renamed = (
    [what for is_bad, what in seen if is_bad == wanted]
    for wanted in (True, False)
  )
  return named(True, 'unreadable files', bad) + named(
    False, 'files whose format differs from their suffix', renamed
  )


def _decode(
  dataset: Dataset, root: Path, records: Sequence[Record], max_pixels: int
) -> list[Finding]:
  """Decodes all images, and compares the hashes of files or pixels."""
  read = registry.open_source(root, dataset, records)
  small = decoder.Decoder(8, 8, max_pixels=max_pixels)

  def one(record: Record) -> tuple[Record, str, str]:
    try:
      data = read(record)
      decoder.decode(data, small)
    except (OSError, ValueError) as error:
      return record, '', str(error)
    return record, decoder.content_hash(data), ''

  seen = _in_threads(one, records)
  bad = [f'{r.name} ({error})' for r, _, error in seen if error]
  findings = named(True, 'undecodable images', bad)
  # The lists train and val are both trained on, so copies in both are no leak.
  sides: dict[str, dict[str, str]] = defaultdict(dict)
  for record, sha, error in seen:
    if not error:
      side = 'train' if record.split in LEARN else record.split
      sides[sha].setdefault(side, record.path)
  for side, other in (*(('train', test) for test in TEST), TEST[:2]):
    same = [own[side] for own in sides.values() if {side, other} <= {*own}]
    what = f'files of {side} that are in {other} too'
    findings += named(side == 'train', what, same)
  return findings
