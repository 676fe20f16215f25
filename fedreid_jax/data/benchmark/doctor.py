"""Checks of a data set on disk before training."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.data.benchmark import doctor_files
from fedreid_jax.data.benchmark.doctor_files import LEARNT, Finding, shown
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.datasets.records import Count, Dataset, Record
from fedreid_jax.evaluation import protocols

TESTED = ('query', 'gallery', 'query+gallery')


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
) -> Report:
  """Compares a data set with the published counts and checks every file.

  Args:
    dataset: description of the data set.
    folder: its unpacked archive, as `registry.locate` returns it.
    options: values of all of its options.
    deep: whether to decode all images and compare their contents.

  Raises:
    ConfigError: for an unknown option or value.
    DataError: when the folder cannot be read.
  """
  records = registry.read(dataset, folder, **options)
  splits: dict[str, list[Record]] = defaultdict(list)
  for record in records:
    splits[record.split].append(record)
  rows, findings = _count(splits, dataset.expected(**options))
  # A file with parts may be a container and not an image.
  paths = sorted({r.path for r in records if not r.part})
  findings += doctor_files.look(folder, paths)
  if deep:
    findings += doctor_files.decode(dataset, folder, records)
  if dataset.protocol in protocols.PROTOCOLS:
    protocol = protocols.PROTOCOLS[dataset.protocol]
    findings += _leaks(splits) + _matches(splits, protocol)
  findings.sort(key=lambda f: not f.is_error)
  used = {record.path for record in records}
  return Report(rows, findings, files.count_others(folder, used))


def _pick(splits: Mapping[str, list[Record]], names: Sequence[str]):
  return [r for name in names for r in splits.get(name, ())]


def _count(splits, expected) -> tuple[list[Row], list[Finding]]:
  rows, findings = [], []
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


def _leaks(splits: Mapping[str, list[Record]]) -> list[Finding]:
  learnt = {r.person for r in _pick(splits, LEARNT)}
  tested = {r.person for r in _pick(splits, TESTED)}
  # Junk (-1) and distractors (0) are not persons of a query.
  both = sorted(person for person in learnt & tested if person > 0)
  if not both:
    return []
  return [Finding(True, f'persons in train and test, {shown(both)}')]


def _matches(splits, protocol: protocols.Protocol) -> list[Finding]:
  """Finds queries without a match, and persons who can have none."""
  findings = []
  train = _pick(splits, LEARNT)
  lonely = _lonely(train)
  if lonely and len({r.camera for r in train}) > 1:
    what = f'training persons seen by one camera only, {shown(lonely)}'
    findings.append(Finding(False, what))
  gallery = defaultdict(set)
  for r in _pick(splits, ('gallery', 'query+gallery')):
    gallery[r.person].add(r.camera)
  queries = _pick(splits, ('query', 'query+gallery'))
  invalid = [
    r.path for r in queries if not _answers(r, gallery[r.person], protocol)
  ]
  if invalid:
    # Nothing can be tested only if no query has a match.
    what = f'queries without a match, {shown(invalid)}'
    findings.append(Finding(len(invalid) == len(queries), what))
  images = defaultdict(int)
  for r in splits.get('images', ()):
    images[r.person] += 1
  single = [person for person, number in images.items() if number < 2]
  if single:
    what = f'persons with one image, never tested, {shown(single)}'
    findings.append(Finding(len(single) == len(images), what))
  return findings


def _lonely(records: Sequence[Record]) -> list[int]:
  cameras = defaultdict(set)
  for r in records:
    cameras[r.person].add(r.camera)
  return sorted(person for person, own in cameras.items() if len(own) == 1)


def _answers(query: Record, cameras: set[int], protocol) -> set[int]:
  hidden = {two for one, two in protocol.common_places if one == query.camera}
  if protocol.same_camera:
    hidden.add(query.camera)
  return cameras - hidden


def check(report: Report, root: str | os.PathLike) -> None:
  """Refuses a data set with errors.

  Raises:
    DataError: with the number of errors, and the first of them.
  """
  wrong = [finding.what for finding in report.findings if finding.is_error]
  if wrong:
    raise errors.DataError(
      f'{errors.counted(len(wrong), "error")}, first: {wrong[0]}',
      str(root),
      'fix the folder',
    )
