"""The table of a sweep: means, differences, CSV and Markdown."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax.config.tables.line import SUFFIXES, Line

COMPARED = (
  'rank1',
  'mAP',
  'accuracy',
)  # metrics with a difference to the baseline


def summarise(
  runs: Iterable[tuple[str, Mapping[str, str], dict[str, Any]]],
) -> list[Line]:
  """Returns mean and standard deviation (population) over the runs of a label.

  Args:
    runs: (label, factors, results.json) of finished runs.
  """
  groups: dict[tuple[str, ...], list] = {}
  for label, factors, results in runs:
    for entry in results['summary']:
      key = label, entry['target'], entry['model'], entry['kind']
      groups.setdefault(key, []).append((factors, entry['metrics'], results))
  lines = []
  for (label, target, model, kind), samples in groups.items():
    numbers = {}
    for name in samples[0][1]:
      values = [metrics[name] for _, metrics, _ in samples]
      numbers[name] = float(np.mean(values))
      numbers[f'{name} std'] = float(np.std(values))
    sent = [sum(r['communication_bytes'].values()) for *_, r in samples]
    spent = [r['seconds']['total'] for *_, r in samples]
    lines.append(
      Line(
        label=label,
        factors=samples[0][0],
        target=target,
        model=model,
        kind=kind,
        samples=len(samples),
        numbers=numbers,
        megabytes=float(np.mean(sent)) / 1e6,
        seconds=float(np.mean(spent)),
      )
    )
  return lines


def compare(lines: Sequence[Line], baseline: Sequence[Line]) -> list[Line]:
  """Adds the increase over a baseline on the same target.

  A model is compared with the baseline's model of the same name. If there is
  none, it is compared with that of the target's own client: a federated model
  with the result of the client alone. Best rounds are compared with best rounds
  if the baseline has any.
  """
  known = {(b.target, b.model, b.kind): b.numbers for b in baseline}
  compared = []
  for line in lines:
    own = f'client:{line.target}'
    kind = 'last' if line.kind == 'last' else 'best'
    keys = (
      (line.model, line.kind),
      (line.model, 'last'),
      (own, kind),
      (own, 'last'),
    )
    found = [known[line.target, *k] for k in keys if (line.target, *k) in known]
    reference = {} if line in baseline or not found else found[0]
    more = {
      f'{name} - baseline': line.numbers[name] - reference[name]
      for name in COMPARED
      if name in line.numbers and name in reference
    }
    compared.append(line._replace(numbers=line.numbers | more))
  return compared


def write(
  path: Path,
  title: str,
  lines: Sequence[Line],
  unfinished: Sequence[Mapping[str, str]] = (),
) -> str:
  """Writes `PATH.csv` and `PATH.md`, each atomically.

  Args:
    path: of the table, without suffix.
    title: of the Markdown.
    lines: of the table.
    unfinished: rows of unfinished runs: label, factors, seed and error.

  Returns:
    The Markdown.
  """
  names = dict.fromkeys(name for line in lines for name in line.numbers)
  metrics = sorted({name.partition(' ')[0] for name in names}, key=_order)
  columns = [n + s for n in metrics for s in ('', *SUFFIXES) if n + s in names]
  factors = dict.fromkeys(k for line in lines for k in line.factors)
  first = ('label', *factors, 'target', 'model', 'kind', 'samples')
  out = io.StringIO()
  table = csv.DictWriter(
    out,
    (*first, *columns, 'MB', 'seconds', 'seed', 'error'),
    extrasaction='ignore',
    lineterminator='\n',
  )
  table.writeheader()
  table.writerows(
    line._asdict()
    | dict(line.factors)
    | {name: f'{value:.4f}' for name, value in line.numbers.items()}
    | {'MB': f'{line.megabytes:.3f}', 'seconds': f'{line.seconds:.1f}'}
    for line in lines
  )
  table.writerows(unfinished)
  _replace(path.with_name(f'{path.name}.csv'), out.getvalue())
  text = _markdown(title, columns, lines, unfinished)
  _replace(path.with_name(f'{path.name}.md'), text)
  return text


def _order(metric: str) -> tuple[str, int]:
  word = metric.rstrip('0123456789')
  return word, int(metric[len(word) :] or 0)


def _markdown(title, columns, lines, unfinished) -> str:
  columns = [name for name in columns if not name.endswith(' std')]
  header = ('label', 'target', 'model', 'kind', 'samples', *columns)
  rows = [(*header, 'MB', 'seconds'), ['---'] * (len(header) + 2)]
  for line in lines:
    numbers = [_percent(line, name) for name in columns]
    rows.append(
      [line.label, line.target, line.model, line.kind, str(line.samples)]
      + [*numbers, f'{line.megabytes:.1f}', f'{line.seconds:.0f}']
    )
  text = [f'# {title}', '', *(f'| {" | ".join(row)} |' for row in rows)]
  if unfinished:
    text += ['', f'Not finished: {len(unfinished)}.', '']
  text += [
    f'- {row["label"]}, seed {row["seed"]}: {row["error"]}'
    for row in unfinished
    if row['error']
  ]
  return '\n'.join(text) + '\n'


def _percent(line: Line, name: str) -> str:
  if name not in line.numbers:
    return ''
  sign = '+' if ' - baseline' in name else ''
  spread = line.numbers.get(f'{name} std', 0.0)
  return f'{line.numbers[name]:{sign}.2f}' + (
    f' ± {spread:.2f}'
    if line.samples > 1 and f'{name} std' in line.numbers
    else ''
  )


def _replace(path: Path, text: str) -> None:
  # Not recorder.write_text: several shards write one table, each by its own
  # temporary name.
  partial = path.with_name(f'{path.name}.{os.getpid()}.partial')
  partial.write_text(text)
  os.replace(partial, path)
