"""Checks of the files of a data set."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from fedreid_jax.data import decoder
from fedreid_jax.data.datasets import source
from fedreid_jax.data.datasets.records import Dataset, Record

LEARNT = ('train', 'val')
SHOWN = 5  # names in a finding
_TASK = 64  # files that a thread checks at a time


class Finding(NamedTuple):
  """One problem of a data set.

  Attributes:
    is_error: whether training or testing would be wrong; else a notice.
    what: description in one line.
  """

  is_error: bool
  what: str


def shown(names: Iterable[Any]) -> str:
  """Returns the number of names and the first `SHOWN`, as text."""
  names = [str(name) for name in names]
  more = f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''
  return f'{len(names)}: ' + ', '.join(names[:SHOWN]) + more


def _in_threads(work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
  """Calls `work` for all items; returns results other than None, in order."""

  def some(start: int) -> list[Any]:
    return [work(item) for item in items[start : start + _TASK]]

  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    tasks = pool.map(some, range(0, len(items), _TASK))
    return [one for task in tasks for one in task if one is not None]


def look(root: Path, paths: Sequence[str]) -> list[Finding]:
  """Checks the first and last bytes of files.

  Only files that look broken are decoded.
  """
  # The pixels are not used, only whether they can be decoded.
  small = decoder.Decoder(8, 8)

  def look(path: str) -> tuple[bool, str] | None:
    try:
      doubt = decoder.doubt(root / path)
      if doubt == decoder.RENAMED:
        return False, path
      if doubt:
        decoder.decode((root / path).read_bytes(), small)
    except (OSError, ValueError) as error:
      return True, f'{path} ({error})'
    return None

  seen = _in_threads(look, paths)
  bad = [what for is_bad, what in seen if is_bad]
  renamed = [what for is_bad, what in seen if not is_bad]
  findings = []
  if bad:
    findings.append(Finding(True, f'unreadable files, {shown(bad)}'))
  if renamed:
    what = f'files whose format differs from their suffix, {shown(renamed)}'
    findings.append(Finding(False, what))
  return findings


def decode(dataset: Dataset, root: Path, records) -> list[Finding]:
  """Decodes every image, and finds images of different splits that are equal.

  Images are compared by the hash of their file or pixels.
  """
  read = source.open_source(root, dataset, records)
  small = decoder.Decoder(8, 8)

  def one(record: Record) -> tuple[Record, str, str]:
    try:
      data = read(record)
      decoder.decode(data, small)
    except (OSError, ValueError) as error:
      return record, '', str(error)
    return record, decoder.content_hash(data), ''

  seen = _in_threads(one, records)
  bad = [f'{r.name} ({error})' for r, _, error in seen if error]
  findings = []
  if bad:
    findings.append(Finding(True, f'undecodable images, {shown(bad)}'))
  # The lists train and val are both trained on, so copies in both are no leak.
  sides = defaultdict(lambda: defaultdict(list))
  for record, sha, error in seen:
    if not error:
      side = 'train' if record.split in LEARNT else record.split
      sides[sha][side].append(record.path)
  for one_side, two, is_error in (
    ('train', 'query', True),
    ('train', 'gallery', True),
    ('train', 'query+gallery', True),
    ('query', 'gallery', False),
  ):
    same = [s[one_side][0] for s in sides.values() if {one_side, two} <= {*s}]
    if same:
      what = f'files of {one_side} that are in {two} too, {shown(same)}'
      findings.append(Finding(is_error, what))
  return findings
