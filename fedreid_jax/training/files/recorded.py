"""The contents of a run's files, for reports; no model is loaded."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.training.files import line_file, recorder, run_files
from fedreid_jax.training.tracking import client_metrics, to_jsonl


class Recorded(NamedTuple):
  """The contents of the files of a run.

  Attributes:
    folder: its work directory.
    config: its configuration.
    results: as in results.json.
    described: as in run.json.
    rounds: lines of metrics.jsonl of the rounds, in order, with the metrics of
      clients that are in `client-metrics/`.
    precision: average precision of every query of the last evaluation, in
      [0, 1] and NaN without a match, by 'MODEL/TARGET/TRIAL'; none for an
      unfinished run.
  """

  folder: Path
  config: Any
  results: dict[str, Any]
  described: dict[str, Any]
  rounds: list[dict[str, Any]]
  precision: dict[str, np.ndarray]


def read(folder: Path) -> Recorded:
  """Reads the files of a run, finished or not.

  Raises:
    IntegrityError: if there is no run, or a file is damaged.
  """
  config = load.load_saved(folder)
  results = recorder.read_object(folder / recorder.RESULTS, 'evaluation')
  described = recorder.read_object(folder / run_files.DESCRIBED)
  found = line_file.read(folder / to_jsonl.FILE, to_jsonl.round_of)
  lines = [json.loads(line) for line, round_ in found if round_ is not None]
  precision: dict[str, np.ndarray] = {}
  queries = folder / recorder.QUERIES
  if queries.exists():
    try:
      # NumPy does not close a damaged file that it has opened itself.
      with (
        queries.open('rb') as file,
        np.load(file, allow_pickle=False) as saved,
      ):
        precision = {name: saved[name] for name in saved.files}
    except client_metrics.DAMAGED as error:
      raise errors.IntegrityError(
        f'cannot be read: {error}', str(queries), run_files.AGAIN
      ) from error
  rounds = [line for line in lines if line.get('event') == 'train']
  for line in rounds:
    if clients := client_metrics.read(folder, line['round']):
      line['by_client'] = clients
  return Recorded(folder, config, results, described, rounds, precision)
