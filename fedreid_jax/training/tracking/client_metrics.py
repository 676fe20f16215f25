"""The metrics of every client of a round: in a line, in a file, or summarised.

A line of `metrics.jsonl` has the names and the metrics of every client of a
small cohort. For a larger cohort it has the numbers of clients and a summary.
On request the metrics of a round are also in `client-metrics/ROUND.npz`: the
array `client` has the names, and every metric is an array of the same length.
"""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from fedreid_jax import errors
from fedreid_jax.config.groups.run import ClientMetrics
from fedreid_jax.training.files import atomic

FOLDER = 'client-metrics'  # in a work directory
NAMES = 'client'
# Exceptions of NumPy's reader and of its decoders, and of a missing array.
DAMAGED = (
  *(OSError, ValueError, KeyError, EOFError),
  *(zipfile.BadZipFile, zlib.error),
)
LARGEST = 16  # clients of a round whose metrics `auto` writes into a line

Form = Literal['lines', 'files', 'summary']


def form(rule: ClientMetrics, clients: int) -> Form:
  """Returns where the metrics of clients are written.

  Args:
    rule: `client_metrics` of a configuration.
    clients: number of clients of a round.
  """
  # The size of a line must not grow with the cohort.
  if rule == 'auto':
    return 'summary' if clients > LARGEST else 'lines'
  return rule


def summary(
  clients: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, float]]:
  """Returns the minimum, median and maximum of each metric over the clients.

  Args:
    clients: metrics by the name of the client, which all have the same.
  """
  return {
    metric: {
      name: float(over([found[metric] for found in clients.values()]))
      for name, over in (('min', min), ('median', np.median), ('max', max))
    }
    for metric in next(iter(clients.values()), {})
  }


def write(
  workdir: Path, round_: int, clients: Mapping[str, Mapping[str, float]]
) -> None:
  """Writes the metrics of the clients of a round, which all have the same."""
  columns = next(iter(clients.values()), {})
  arrays: dict[str, np.ndarray] = {
    metric: np.array([found[metric] for found in clients.values()], np.float64)
    for metric in columns
  }
  arrays[NAMES] = np.array([*clients], np.str_)
  file = io.BytesIO()
  np.savez_compressed(file, allow_pickle=False, **arrays)
  folder = workdir / FOLDER
  with errors.on_disk(folder):
    folder.mkdir(exist_ok=True)
  atomic.write_bytes(folder / f'{round_}.npz', file.getvalue())


def rewind(workdir: Path, round_: int) -> None:
  """Deletes the files of rounds after `round_`, which are computed again."""
  for path in (workdir / FOLDER).glob('*.npz'):
    if path.stem.isdigit() and int(path.stem) > round_:
      path.unlink()


def read(workdir: Path, round_: int) -> dict[str, dict[str, float]]:
  """Returns the metrics of the clients of a round, {} if there is no file.

  Raises:
    IntegrityError: when the file is damaged.
  """
  path = workdir / FOLDER / f'{round_}.npz'
  if not path.exists():
    return {}
  try:
    with path.open('rb') as file, np.load(file, allow_pickle=False) as saved:
      columns = {name: saved[name].tolist() for name in saved.files}
    names = columns.pop(NAMES)
  except DAMAGED as error:
    raise errors.IntegrityError(
      f'cannot be read: {error}', str(path), 'restore it from a copy'
    ) from error
  return {
    name: {metric: values[k] for metric, values in columns.items()}
    for k, name in enumerate(names)
  }
