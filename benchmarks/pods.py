"""Compiles rounds of recipes for pods that are not there; writes a table.

  JAX_PLATFORMS=cpu python -m benchmarks.pods --recipe=fedpav:paper \
    --recipe=fedpav:paper,model.name=vit --topology=v5e:2x4 --out=pods.jsonl

Each pair is compiled once: a line of the file that is there is kept. The memory
is that of the program of a round that needs most; the operations and the bytes
are those of one step of one client, except `others`. The share is that of the
operations in the floor.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.training.reports import topology

_RECIPES = flags.DEFINE_multi_string(
  'recipe', ['fedpav:smoke'], 'RECIPE:PRESET, with ,FIELD=VALUE for changes.'
)
_TOPOLOGIES = flags.DEFINE_multi_string('topology', ['v5e:2x2'], 'Pods.')
_OUT = flags.DEFINE_string('out', 'pods.jsonl', 'File of the figures.')
HEAD = (
  *('recipe', 'pod', 'GB a chip', 'temporary', 'Gflop a step', 'GB a step'),
  *('GB others', 'operations, ms', 'floor, ms', 'share', 'collectives', 'MB'),
)


def measured(recipe: str, pod: str) -> dict[str, Any]:
  """The figures of a round, or the line of the error."""
  began = time.monotonic()
  given = {'recipe': recipe, 'pod': pod}
  try:
    config = validation.validate(recipes.recipe(recipe, ''))
    rows, _, device = topology.programs(config, pod)
  except Exception as error:  # compilers raise any
    known = isinstance(error, errors.FedReIDError)
    line = error.line() if known else str(error).splitlines()[0]
    return given | {'error': line}
  chip = topology.CHIPS[device.device_kind]  # of a pod, not of cpu:N
  largest = max(rows, key=lambda row: row.need)
  (step,) = (row for row in rows if row.name == 'training')
  found = [x for row in rows for x in row.collectives.values()]
  return given | {
    'memory': largest.need,
    'temporary': largest.memory.temporary,
    'flops': step.flops,
    'moved': step.moved,
    'others': step.others,
    'floor': step.floor(chip),
    'floor_flops': step.flops / chip.flops,
    'collectives': sum(number for number, _ in found),
    'bytes': sum(size for _, size in found),
    'compiled_in': time.monotonic() - began,
  }


def table(rows: Sequence[dict[str, Any]]) -> str:
  """The figures as Markdown."""
  lines = [f'| {" | ".join(HEAD)} |', '|---' * len(HEAD) + '|']
  for row in rows:
    names = row['recipe'], row['pod']
    if 'error' in row:
      lines.append(f'| {" | ".join(names)} | {row["error"]} |')
      continue
    # The compiler for GPUs has no operations and no bytes.
    share = row['flops'] and 100 * row['floor_flops'] / row['floor']
    cells = (
      f'{row["memory"] / 1e9:.1f}',
      f'{row["temporary"] / 1e9:.1f}',
      f'{row["flops"] / 1e9:.0f}' if row['flops'] else '',
      f'{row["moved"] / 1e9:.2f}' if row['moved'] else '',
      f'{row["others"] / 1e9:.2f}' if row.get('others') else '',
      f'{1e3 * row["floor_flops"]:.2f}' if row['flops'] else '',
      f'{1e3 * row["floor"]:.2f}' if row['flops'] else '',
      f'{share:.0f} %' if share else '',
      str(row['collectives']),
      f'{row["bytes"] / 1e6:.0f}',
    )
    lines.append(f'| {" | ".join((*names, *cells))} |')
  return '\n'.join(lines)


def main(argv: Sequence[str]) -> None:
  """Compiles the pairs that are not in the file yet."""
  del argv
  out = Path(_OUT.value)
  lines = out.read_text().splitlines() if out.exists() else []
  rows = [row for row in map(json.loads, lines) if 'error' not in row]
  done = {(row['recipe'], row['pod']) for row in rows}
  for pod in _TOPOLOGIES.value:
    for recipe in _RECIPES.value:
      if (recipe, pod) in done:
        continue
      rows.append(measured(recipe, pod))
      with out.open('a') as file:
        file.write(json.dumps(rows[-1]) + '\n')
  print(table(rows))


if __name__ == '__main__':
  app.run(main)
