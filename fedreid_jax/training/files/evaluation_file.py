"""The file of an evaluation after training, which no other overwrites."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.config import load, parsing, saved_config
from fedreid_jax.training.files import recorder

LONGEST = 60  # letters of the targets in a name


def write(
  config, workdir: Path, which: str, step: int, entries: Sequence[Any]
) -> Path:
  """Writes `evaluation-STEP-TARGETS.json` and returns its path.

  The file has the `checkpoint` as it was asked for, its `round`, the
  `overrides` (fields in which the configuration differs from that of the run)
  and the `entries`. The same evaluation replaces its file; another evaluation
  of the same round and targets gets a number at the end of the name.

  Args:
    config: of the evaluation.
    workdir: of a run.
    which: 'latest', 'best' or a step.
    step: round of the checkpoint.
    entries: as in `results.json`.
  """
  found = {
    'checkpoint': which,
    'round': step,
    'overrides': overrides(config, workdir),
    'entries': list(entries),
  }
  names = '+'.join(dict.fromkeys(entry['target'] for entry in entries))
  short = re.sub(r'[^\w.+-]+', '_', names)[:LONGEST] or 'none'
  number = 1
  while True:
    end = '' if number == 1 else f'-{number}'
    path = workdir / f'evaluation-{step}-{short}{end}.json'
    if not path.exists() or _same(path, found):
      recorder.write_json(path, found)
      return path
    number += 1


def overrides(config, workdir: Path) -> dict[str, Any]:
  """Returns the fields in which a configuration differs from that of a run."""
  before = parsing.flatten(load.load_saved(workdir))
  now = parsing.flatten(saved_config.identity(config))
  return {k: now[k] for k in sorted(now) if now[k] != before.get(k)}


def _same(path: Path, found: dict[str, Any]) -> bool:
  """Returns whether a file of this name holds the same evaluation."""
  try:
    before = recorder.read_object(path)
  except errors.IntegrityError:
    return True  # it was not completely written, and is replaced
  now = json.loads(json.dumps(found))  # lists in place of tuples
  return all(before.get(key) == now[key] for key in ('checkpoint', 'overrides'))
