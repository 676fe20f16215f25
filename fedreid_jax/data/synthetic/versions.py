"""Names of the versions of the synthetic world."""

from typing import Literal

Name = Literal['synthetic', 'synthetic_v1', 'synthetic_v2']
UNVERSIONED = 'synthetic'
FIRST, NEWEST = 'synthetic_v1', 'synthetic_v2'
VERSIONS = FIRST, NEWEST
NAMES = UNVERSIONED, *VERSIONS


def resolve(source: str) -> str:
  """Version of a synthetic `data.source`, by default the newest."""
  return NEWEST if source == UNVERSIONED else source


def of_file(source: str) -> str:
  """Version of `data.source` in the file of a run.

  A run saves the name of a version. The name without a version is in files from
  before there were versions, and means the first version.
  """
  return FIRST if source == UNVERSIONED else source
