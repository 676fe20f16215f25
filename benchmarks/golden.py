"""Final metrics and models of the recipes, to compare two commits bit by bit.

  python -m benchmarks.golden --write=FILE [--recipes=dfh,fedpav]
  python -m benchmarks.golden --compare=FILE [--recipes=dfh,fedpav]

The program trains the preset `smoke` of every recipe on `synthetic_v1`, in one
process and on one device, and records the metrics of the last evaluation and a
SHA-256 of every final model. `--compare` prints the recipes whose records
differ and exits with code 1 if there are any. The last bits depend on the type
of CPU, so write and compare on one machine.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault('JAX_NUM_CPU_DEVICES', '1')

import jax
from absl import app, flags

from fedreid_jax.config import recipes, validation
from fedreid_jax.core import param_filter
from fedreid_jax.data import cache
from fedreid_jax.data.synthetic import versions
from fedreid_jax.training import loop, restored, run_files

_WRITE = flags.DEFINE_string('write', None, 'File to write.')
_COMPARE = flags.DEFINE_string('compare', None, 'File to compare with.')
# Records of earlier commits are of the first synthetic world.
_ARGUMENT = f'smoke,data.source={versions.FIRST}'
_RECIPES = flags.DEFINE_list('recipes', None, 'Recipes (default: all).')


def record(recipe: str) -> dict[str, Any]:
  """Trains a recipe's smoke preset; returns its metrics and model digests."""
  config = validation.validate(recipes.recipe(recipe, _ARGUMENT))
  with tempfile.TemporaryDirectory() as folder:
    results = loop.train(config, Path(folder))
    with run_files.checkpoints_of(Path(folder)) as saved:
      models = restored.restore(saved, 'latest').models
  jax.clear_caches()  # otherwise the programs of all recipes stay in memory
  last = [
    {'target': e['target'], 'model': e['model'], **e['metrics']}
    for e in results['evaluation']
    if e['round'] == results['rounds']
  ]
  digests = {
    name: param_filter.digest(variables) for name, variables in models.items()
  }
  return {'metrics': last, 'models': digests}


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
  """Returns a line for every recipe whose records are not equal.

  Args:
    before: records by recipe, of another commit.
    now: records by recipe; recipes that were not trained now are ignored.
  """
  lines = []
  for recipe, record_ in now.items():
    other = before.get(recipe)
    parts = [k for k in record_ if other and other[k] != record_[k]]
    if other is None:
      lines.append(f'{recipe}: not recorded before')
    elif parts:
      lines.append(f'{recipe}: {" and ".join(parts)} differ')
  return lines


def main(argv: list[str]) -> None:
  """Writes the records, or compares them with those of a file."""
  del argv
  write, compare = _WRITE.value, _COMPARE.value
  if bool(write) == bool(compare):
    raise app.UsageError('give --write=FILE or --compare=FILE')
  jax.config.update('jax_compilation_cache_dir', str(cache.cache_dir() / 'xla'))
  now = {recipe: record(recipe) for recipe in _RECIPES.value or recipes.names()}
  if write:
    Path(write).write_text(json.dumps(now, indent=2) + '\n')
  if compare:
    lines = differing(json.loads(Path(compare).read_text()), now)
    print('\n'.join(lines) or f'{len(now)} recipes are equal to the bit')
    sys.exit(bool(lines))


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
