"""Checks of a folder of photographs before training.

Labels are those of the preset `photos`. No pixel is decoded, unless a file is
in doubt or all are asked for, and only files of equal sizes are read whole.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data import decoder, files, names
from fedreid_jax.data.benchmark import doctor
from fedreid_jax.data.benchmark.doctor import Finding, Report, Row
from fedreid_jax.data.datasets.records import Count
from fedreid_jax.data.folder import domains, folder_layout, notices, queries
from fedreid_jax.data.folder.folder_layout import Listing

HELD_OUT = 0.25  # share of persons that the preset `photos` tests on


class Examined(NamedTuple):
  """A report with a row for each domain, and what a run would note."""

  report: Report
  layout: str  # for users
  notes: list[str]


def examine(
  root: Path, deep: bool = False, max_pixels: int = decoder.MAX_PIXELS
) -> Examined:
  """Counts the persons of every domain, and checks all files.

  Args:
    root: absolute path, as of `files.check_root`.
    deep: whether to decode all images.

  Raises:
    DataError: for a folder of no known layout.
  """
  patterns = folder_layout.Patterns()
  layout = folder_layout.find(root, patterns, needs_cameras=False)
  listings = {domain: layout.read(domain) for domain in layout.domains}
  hashes = _hashes(listings)
  rows: list[Row] = []
  findings = _refused(lambda: folder_layout.check_domains(layout, root))
  used: set[str] = set()
  for domain, listing in listings.items():
    rows.append(Row(domain, _count(listing), None))
    findings += doctor.look(
      listing.folder, listing.names, max_pixels, deep=deep
    )
    findings += _copies(listing, hashes[domain]) + _alone(domain, listing)
    used |= {
      (listing.folder / name).relative_to(root).as_posix()
      for name in listing.names
    }
  findings += _between(hashes)
  if not layout.split:
    # By default a run tests on the last domain, or on a part of a single one.
    last = layout.domains[-1]
    single = len(layout.domains) == 1
    findings += _untestable(last, listings[last], hashes[last], single)
  findings.sort(key=lambda finding: not finding.is_error)
  report = Report(rows, findings, files.count_others(root, used))
  notes = notices.of_folder(root, layout, [*listings.values()])
  return Examined(report, layout.kind, notes)


def _refused(check: Callable[[], object]) -> list[Finding]:
  """An error if a run refuses the folder."""
  try:
    check()
  except errors.DataError as error:
    return [Finding(True, f'{error.what}; {error.fix}')]
  return []


def _untestable(
  domain: str, listing: Listing, hashes: Sequence[str], single: bool
) -> list[Finding]:
  """An error if no test can be made of the persons of a domain."""
  try:
    rows, _ = domains.originals(listing, hashes)
  except errors.DataError:  # which is a finding of its own
    return []
  images, cameras = domains.numbered(
    domain, listing.take(rows), lambda: np.empty(0, np.uint8)
  )
  if single:
    return _refused(
      lambda: queries.held_out(
        images, bool(cameras), HELD_OUT, 0, 'data.held_out'
      )
    )
  return _refused(lambda: queries.choose(queries.RANDOM, images, cameras, 0))


def _count(listing: Listing) -> Count:
  people = {*listing.identities} - {names.NOBODY}
  cameras = len({*listing.cameras}) if listing.cameras else None
  return Count(len(listing.names), len(people), cameras)


def _hashes(listings: Mapping[str, Listing]) -> dict[str, list[str]]:
  """Hashes of the files of every domain; names of files that have no copy."""
  paths = {
    domain: [one.folder / name for name in one.names]
    for domain, one in listings.items()
  }
  sizes = {path: path.stat().st_size for own in paths.values() for path in own}
  several = Counter(sizes.values())

  def content(path: Path) -> str:
    # Files of a size that no other has are no copies.
    alone = several[sizes[path]] == 1
    return str(path) if alone else decoder.content_hash(path.read_bytes())

  return {domain: [*map(content, own)] for domain, own in paths.items()}


def _copies(listing: Listing, hashes: Sequence[str]) -> list[Finding]:
  try:
    found = domains.originals(listing, hashes)[1]
  except errors.DataError as error:
    return [Finding(True, error.what)]
  said = notices.copies(found)
  return [Finding(False, said)] if said else []


def _between(hashes: Mapping[str, Sequence[str]]) -> list[Finding]:
  """Finds files of two domains, of which a run trains on one only."""
  found: list[Finding] = []
  for one, other in itertools.combinations(hashes, 2):
    number = len({*hashes[one]} & {*hashes[other]})
    if number:
      what = f'{errors.counted(number, "file")} of {one} and of {other} too'
      found.append(Finding(False, f'the same content: {what}'))
  return found


def _alone(domain: str, listing: Listing) -> list[Finding]:
  """Finds persons without two images, who are never found in a test."""
  images = Counter(listing.identities)
  single: Sequence[str] = sorted(
    person for person, n in images.items() if n == 1 and person != names.NOBODY
  )
  return doctor.named(False, f'persons of {domain} with one image', single)
