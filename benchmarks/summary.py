"""Mean and spread over seeds of finished runs, for last and best rounds.

  python -m benchmarks.summary WORKDIR [WORKDIR ...]

Runs whose configurations differ only in the seed are the samples of a row.
There is one row per target, model and kind of result
(`fedreid_jax.training.reports.report` describes the kinds). If clients' own
models were evaluated, there are also rows `mean over N`: of these models, each
on its client's domain, and of the global model on the same domains.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from absl import app
from rich import console, table

from fedreid_jax.core import model_names

METRICS = ('mAP', 'mINP', 'rank1', 'rank5', 'rank10')
FACTS = ('run', 'sources', 'target', 'model', 'kind', 'rounds')

Entry = dict[str, Any]


def rows_of(entries: list[Entry]) -> Iterable[tuple[tuple[str, ...], Entry]]:
  """Yields ((target, model, kind, rounds), metrics) of a run.

  Args:
    entries: `summary` of results.json.
  """
  domains = {
    e['target']
    for e in entries
    if e['model'] == model_names.of_client(e['target'])
  }
  means = defaultdict(list)
  for entry in entries:
    target, model, kind = (entry[k] for k in ('target', 'model', 'kind'))
    rounds = ', '.join(map(str, entry['rounds']))
    # Best rounds differ between seeds.
    shown = rounds if kind == 'last' else ''
    yield (target, model, kind, shown), entry['metrics']
    served = model == model_names.GLOBAL
    if target in domains and (served or model == model_names.of_client(target)):
      family = model_names.GLOBAL if served else 'own'
      means[f'mean over {len(domains)}', family, kind, shown].append(
        entry['metrics']
      )
  for row, found in means.items():
    yield row, {k: float(np.mean([m[k] for m in found])) for k in found[0]}


def collect(workdirs: Iterable[str]) -> dict[tuple, list[tuple[Entry, float]]]:
  """Returns [(metrics, seconds of the run), ...] of each row of the table."""
  groups = defaultdict(list)
  for name in workdirs:
    config = json.loads(Path(name, 'config.json').read_text())
    results = json.loads(Path(name, 'results.json').read_text())
    del config['seed']
    title = f'{results["config"]} ({results["method"]})'
    domains = [spec.partition(':')[0] for spec in config['data']['sources']]
    sources = ', '.join(domains) or 'all others'
    for row, metrics in rows_of(results['summary']):
      key = json.dumps(config, sort_keys=True), (title, sources, *row)
      groups[key].append((metrics, results['seconds']['total']))
  return groups


def main(argv: list[str]) -> None:
  """Prints one row per configuration, target, model and kind."""
  out = table.Table(title='mean ± standard deviation over seeds')
  for column in (*FACTS, 'seeds', *METRICS, 's'):
    out.add_column(column)
  for (_, row), runs in collect(argv[1:]).items():
    values = [np.asarray([m[k] for m, _ in runs]) for k in METRICS]
    out.add_row(
      *row,
      str(len(runs)),
      *(f'{v.mean():.1f} ± {v.std():.1f}' for v in values),
      f'{np.mean([s for _, s in runs]):.0f}',
    )
  console.Console(width=200).print(out)


if __name__ == '__main__':
  app.run(main, argv=sys.argv)
