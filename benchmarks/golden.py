"""Final metrics and models of the recipes, to compare two commits.

  python -m benchmarks.golden --write=FILE [--recipes=dfh,fedpav] [--rounds=1]
  python -m benchmarks.golden --compare=FILE [--tolerance=1e-4] [...]

The program trains the preset `smoke` of every recipe on `synthetic_v1`, in one
process and on one device, and records the metrics of the last evaluation, a
SHA-256 of every final model and the norm of each of its arrays. `--compare`
prints the recipes whose records differ and exits with code 1 if there are any.
It compares bits, or with a tolerance the norms alone: bits change with the
order of additions, and training enlarges their change, so that one round is to
be compared then. The last bits depend on the type of CPU as well, so write and
compare on one machine.
"""

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault('JAX_NUM_CPU_DEVICES', '1')

import jax
import numpy as np
from absl import app, flags

from fedreid_jax.config import recipes, validation
from fedreid_jax.core import trees
from fedreid_jax.data import cache
from fedreid_jax.data.synthetic import versions
from fedreid_jax.training import loop, named_models
from fedreid_jax.training.files import run_files

_WRITE = flags.DEFINE_string('write', None, 'File to write.')
_COMPARE = flags.DEFINE_string('compare', None, 'File to compare with.')
_ROUNDS = flags.DEFINE_integer('rounds', 0, 'Number of rounds, 0: the preset.')
_TOLERANCE = flags.DEFINE_float(
  'tolerance', 0.0, 'Relative difference of norms that is none; 0: bits.'
)
# Records of earlier commits are of the first synthetic world.
# The draws of a secret of the system differ between runs.
_ARGUMENT = f'smoke,privacy.secret=seed,data.source={versions.FIRST}'
_RECIPES = flags.DEFINE_list('recipes', None, 'Recipes (default: all).')


def record(recipe: str, rounds: int = 0) -> dict[str, Any]:
  """Trains a recipe's smoke preset; returns its metrics, digests and norms.

  Args:
    recipe: name of the recipe.
    rounds: number of rounds, 0 for that of the preset.
  """
  argument = _ARGUMENT + (f',rounds={rounds}' if rounds else '')
  config = validation.validate(recipes.recipe(recipe, argument))
  with tempfile.TemporaryDirectory() as folder:
    results = loop.train(config, Path(folder))
    saved = run_files.checkpoints_of(Path(folder))
    models = named_models.restore(saved, 'latest').models
  jax.clear_caches()  # otherwise the programs of all recipes stay in memory
  last = [
    {'target': e['target'], 'model': e['model'], **e['metrics']}
    for e in results['evaluation']
    if e['round'] == results['rounds']
  ]
  digests = {
    name: trees.digest(variables) for name, variables in models.items()
  }
  norms = {
    f'{name} {leaf}': float(np.linalg.norm(np.asarray(x, np.float64)))
    for name, variables in models.items()
    for leaf, x in variables.items()
  }
  return {'metrics': last, 'models': digests, 'norms': norms}


def far(
  before: dict[str, float], now: dict[str, float], tolerance: float
) -> str:
  """Returns the norm that differs most, empty if all are within a tolerance."""
  if before.keys() != now.keys():
    return 'names of arrays'
  apart = {n: abs(x - before[n]) / max(x, 1e-3) for n, x in now.items()}
  # A norm that is no number differs from every other one.
  apart = {n: math.inf if math.isnan(x) else x for n, x in apart.items()}
  worst = max(apart, key=apart.__getitem__)
  return f'{worst} by {apart[worst]:.1e}' if apart[worst] > tolerance else ''


def differing(
  before: dict[str, Any], now: dict[str, Any], tolerance: float = 0.0
) -> list[str]:
  """Returns a line for every recipe whose records are not equal.

  Args:
    before: records by recipe, of another commit.
    now: records by recipe; recipes that were not trained now are ignored.
    tolerance: relative difference of norms; 0 compares bits.
  """
  lines = []
  for recipe, record_ in now.items():
    other = before.get(recipe)
    if other is None:
      lines.append(f'{recipe}: not recorded before')
      continue
    if tolerance:
      worst = far(other['norms'], record_['norms'], tolerance)
      lines += [f'{recipe}: {worst}'] if worst else []
      continue
    parts = [k for k in ('metrics', 'models') if other[k] != record_[k]]
    if parts:
      lines.append(f'{recipe}: {" and ".join(parts)} differ')
  return lines


def main(argv: list[str]) -> None:
  """Writes the records, or compares them with those of a file."""
  del argv
  write, compare = _WRITE.value, _COMPARE.value
  if bool(write) == bool(compare):
    raise app.UsageError('give --write=FILE or --compare=FILE')
  jax.config.update('jax_compilation_cache_dir', str(cache.cache_dir() / 'xla'))
  names = _RECIPES.value or recipes.names()
  now = {name: record(name, _ROUNDS.value) for name in names}
  if write:
    Path(write).write_text(json.dumps(now, indent=2) + '\n')
  if compare:
    before = json.loads(Path(compare).read_text())
    lines = differing(before, now, _TOLERANCE.value)
    how = f'within {_TOLERANCE.value:g}' if _TOLERANCE.value else 'to the bit'
    print('\n'.join(lines) or f'{len(now)} recipes are equal {how}')
    sys.exit(bool(lines))


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
