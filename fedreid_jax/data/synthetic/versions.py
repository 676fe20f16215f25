"""Names of the versions of the synthetic world.

A recipe that says 'synthetic' means the newest version. The file of a run has
the name of the version, so 'synthetic' in a file is the first one, which was
written before there were others.
"""

from typing import Literal

Name = Literal['synthetic', 'synthetic_v1', 'synthetic_v2']
UNVERSIONED = 'synthetic'
FIRST, NEWEST = 'synthetic_v1', 'synthetic_v2'
VERSIONS = FIRST, NEWEST
NAMES = UNVERSIONED, *VERSIONS


def resolve(source: str) -> str:
  """Returns the version that a configuration means by `data.source`.

  Args:
    source: any `data.source`; one that is not synthetic is returned as it is.
  """
  return NEWEST if source == UNVERSIONED else source


def of_file(source: str) -> str:
  """Returns the version that the file of a run means by `data.source`.

  Args:
    source: any `data.source`; one that is not synthetic is returned as it is.
  """
  return FIRST if source == UNVERSIONED else source
