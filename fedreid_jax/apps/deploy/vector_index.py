"""The approximate index of a file of vectors, in two files beside it.

`vectors.ivfpq` has the codes of FAISS for `vectors.npy`, and
`vectors.ivfpq.json` says of which vectors they are and how many of the nearest
vectors a search finds. Both are written at the first search and used by later
ones. An index of vectors that have changed since is built again.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax.apps.deploy import vectors
from fedreid_jax.evaluation import approximate
from fedreid_jax.evaluation.approximate import Index, Recall
from fedreid_jax.training.files import atomic, recorder

# What an index depends on; another version of these builds it again.
SETTINGS = [
  *(approximate.TRAINED, approximate.ITERATIONS),
  *(approximate.NUMBERS, approximate.BYTES, approximate.SEED),
]


def path_of(stored: Path, kind: str) -> Path:
  """Returns `vectors.ivfpq` for `vectors.npy`."""
  return stored.with_suffix(f'.{kind}')


def opened(
  stored: Path | None,
  rows: np.ndarray,
  metric: str,
  kind: str,
  advance: Callable[[int], None] = lambda more: None,
) -> Index:
  """The index of vectors, from its file if this is of the same vectors.

  Args:
    stored: file of the vectors, beside which the index is kept; None keeps no
      index.
    rows: the vectors, float32 `[n, D]`.
    kind: of the index, one of `approximate.KINDS` but 'exact'.
    advance: called with the number of further vectors, while it is built.

  Raises:
    DataError: for too few vectors.
    ConfigError: when FAISS is not installed.
    IntegrityError: for a file of an index that is damaged.
    ResourceError: when the index cannot be written.
  """
  about = {
    'sample': vectors.sample(rows),
    'vectors': len(rows),
    'metric': metric,
    'settings': SETTINGS,
  }
  path = None if stored is None else path_of(stored, kind)
  if path and (recall := _recall(_described(path), about)):
    return approximate.load(path, len(rows), recall)
  made = approximate.build(rows, metric, advance)
  if path:
    atomic.check_writable(path)
    # Deleted first and written last: with it, the index is complete.
    _described(path).unlink(missing_ok=True)
    made.save(path)
    recall = {'recall': list(made.recall)}
    recorder.write_json(_described(path), about | recall)
  return made


def _described(path: Path) -> Path:
  return path.with_name(f'{path.name}.json')


def _recall(path: Path, about: dict[str, Any]) -> Recall | None:
  """The recall that a file has for the vectors of `about`, or None."""
  try:
    found = json.loads(path.read_text())
    share, neighbours, queries = found.pop('recall')
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    return None
  return Recall(share, neighbours, queries) if found == about else None
