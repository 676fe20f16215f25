"""Mean and spread over seeds of finished runs.

  python -m benchmarks.summary WORKDIR [WORKDIR ...]

Runs of one configuration but for the seed make a row.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from absl import app
from rich import console, table

METRICS = ('mAP', 'mINP', 'rank1', 'rank5', 'rank10')


def read(workdir: Path):
  """Returns (key of a run without its seed, last evaluation, seconds)."""
  config = json.loads((workdir / 'config.json').read_text())
  results = json.loads((workdir / 'results.json').read_text())
  del config['seed']
  last = max(e['round'] for e in results['evaluation'])
  found = [e for e in results['evaluation'] if e['round'] == last]
  return json.dumps(config, sort_keys=True), found, results


def main(argv: list[str]) -> None:
  """Prints one row a configuration and target."""
  groups = defaultdict(list)
  for name in argv[1:]:
    key, found, results = read(Path(name))
    for entry in found:
      title = f'{results["config"]} ({results["method"]})'
      sources = ', '.join(json.loads(key)['data']['sources'])
      row = title, sources, entry['target'], entry['model'], entry['round']
      groups[key, row].append((entry['metrics'], results['seconds']['total']))
  out = table.Table(title='mean ± standard deviation over seeds')
  for column in ('run', 'sources', 'target', 'round', 'seeds', *METRICS, 's'):
    out.add_column(column)
  for (_, row), runs in groups.items():
    title, sources, target, _, last = row
    values = [np.asarray([m[k] for m, _ in runs]) for k in METRICS]
    out.add_row(
      title,
      sources or 'all others',
      target,
      str(last),
      str(len(runs)),
      *(f'{v.mean():.1f} ± {v.std():.1f}' for v in values),
      f'{np.mean([s for _, s in runs]):.0f}',
    )
  console.Console(width=160).print(out)


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
