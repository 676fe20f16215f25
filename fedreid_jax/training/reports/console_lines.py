"""Lines of a console about a round and about an evaluation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import model_names
from fedreid_jax.training import callbacks

# Suffixes of metrics that have no column in tables.
APART = ('_std', '_before_neck', '_after_neck')
FIGURES = 'accuracy', 'ami', 'lr'  # a line of a round has the first two
CLIENTS = 16  # rows of clients in a table and lines of their models
_INDENT = ' ' * 6

Entry = Mapping[str, Any]


def of_round(event: callbacks.Round, all_figures: bool) -> Iterator[str]:
  """Yields the line of a round, and all its figures on request."""
  values = event.metrics
  figures = [name for name in FIGURES if name in values][:2]
  shown = [name for name in ('loss', *figures) if name in values]
  line = (
    f'round {event.round:>4}/{event.rounds}  {values["seconds"]:6.2f} s  '
    f'{values["images_per_second"]:7.0f} images/s'
  )
  yield '  '.join((line, *(f'{name} {values[name]:.4g}' for name in shown)))
  if all_figures:
    megabytes = (values['bytes_up'] + values['bytes_down']) / 1e6
    others = (
      f'{name} {value:.4g}'
      for name, value in values.items()
      if isinstance(value, float)
      and name not in ('seconds', *shown)
      and not name.startswith('images_')
    )
    yield _INDENT + '  '.join((f'{megabytes:.1f} MB', *others))
  if 'clusters' in values:
    clusters = (' + '.join(names) for names in values['clusters'].values())
    yield f'{_INDENT}clusters: {" | ".join(clusters)}'


def of_evaluation(entries: Sequence[Entry]) -> Iterator[str]:
  """Yields a line for each model and target."""
  for entry in few(entries):
    figures = (
      f'{name} {value:.2f}'
      for name, value in entry['metrics'].items()
      if not name.endswith(APART)
    )
    yield f'  {entry["target"]} {entry["model"]}: {"  ".join(figures)}'


def few(entries: Sequence[Entry]) -> list[dict[str, Any]]:
  """Replaces entries of more than `CLIENTS` own models by their means.

  Models of one kind and round, such as 'client:NAME, own best', have one mean
  over all targets.
  """
  groups: dict[tuple[Any, str], list[Entry]] = {}
  for entry in entries:
    if model_names.client_of(entry['model']):
      kind = entry['model'].partition(', ')[2]
      # The best rounds of clients differ.
      key = '' if kind else entry.get('round', 0), kind
      groups.setdefault(key, []).append(entry)
  many = {key: own for key, own in groups.items() if len(own) > CLIENTS}
  replaced = {id(entry) for own in many.values() for entry in own}
  means = [
    dict(own[0])
    | {
      'target': 'own targets',
      'model': ', '.join(filter(None, (f'mean of {len(own)}', kind))),
      'round': round_,
      'metrics': {
        name: float(np.mean([e['metrics'][name] for e in own]))
        for name in own[0]['metrics']
        if all(name in e['metrics'] for e in own)
      },
    }
    | {
      name: sum(e[name] for e in own)
      for name in ('queries', 'gallery', 'invalid_queries')
      if name in own[0]
    }
    for (round_, kind), own in many.items()
  ]
  return [dict(e) for e in entries if id(e) not in replaced] + means


def clients(rows: Sequence[Entry]) -> tuple[list[list[str]], list[str]]:
  """The rows of a table of clients, and a caption.

  More than `CLIENTS` clients are described by the smallest, the median and the
  largest number of each column.
  """
  if len(rows) <= CLIENTS:
    return [[str(value) for value in row.values()] for row in rows], []
  columns = {
    name: [row[name] for row in rows if isinstance(row[name], int)]
    for name in [*rows[0]][1:]
  }
  over = {'smallest': min, 'median': np.median, 'largest': max}
  found = [
    [word, *(f'{of(x):g}' if x else '-' for x in columns.values())]
    for word, of in over.items()
  ]
  number = errors.counted(len(rows), 'client')
  return found, [f'{number}, which run.json lists']
