"""Draws loaded runs, and the figure that a table is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.apps.papers import figures, report
from fedreid_jax.apps.papers.cells import Cell, results
from fedreid_jax.apps.papers.tables.declare import Table
from fedreid_jax.config import load
from fedreid_jax.figures import canvas, curves, retrieval, tsne, why
from fedreid_jax.training import loaded_run


def of_runs(
  what: str,
  runs: retrieval.Runs,
  target: str = '',
  source: str = '',
  seed: int = 0,
) -> Any:
  """Draws runs by the kind of the picture, see `fedreid visualize`.

  'persons+distances' has both pictures of each run in a column.
  """
  if what == 'ranked':
    label, run = runs[0]
    return retrieval.draw_ranked(run, label, target, seed=seed)
  if what == 'why':
    label, run = runs[0]
    return why.draw(run, label, target, seed=seed)
  if what == 'tsne':
    return tsne.draw(runs, source, seed)
  if what == 'cmc':
    return retrieval.draw_match_curves(runs, target)
  if what == 'persons':
    return tsne.draw_persons(runs, target, seed)
  panels = None
  if what == 'persons+distances':
    _, (above, panels) = canvas.table(2, len(runs), 4.2, 4.2)
    tsne.draw_persons(runs, target, seed, above)
  return retrieval.draw_distances(runs, target, seed, panels)


def of_table(
  table: Table, preset: str, cells: Sequence[Cell], path: Path
) -> Any:
  """Draws the finished runs of a table by `table.picture`.

  'sweep' and 'bars' show the numbers of the file PATH.csv and 'curves' the
  evaluation of all runs on each target; others show one run of each row.

  Raises:
    ConfigError: if too few runs have finished, or a library is missing.
  """
  if table.picture == 'sweep':
    return figures.draw_sweep(report.read(path))
  if table.picture == 'bars':
    return figures.draw_bars(report.read(path))
  if table.picture == 'curves':
    return curves.draw(report.finished(path), apart=True)
  first: dict[str, Cell] = {}
  for cell in cells:
    if results(cell):
      first.setdefault(cell.label, cell)
  if not first:
    raise errors.ConfigError('no run has finished', str(path), 'finish a run')
  runs = [
    (label, loaded_run.load(load.load_saved(cell.workdir), cell.workdir))
    for label, cell in first.items()
  ]
  source = table.source.get('paper' if preset == 'paper' else 'synthetic', '')
  return of_runs(table.picture, runs, source=source)


def write(
  table: Table, preset: str, cells: Sequence[Cell], path: Path, picture: Path
) -> None:
  """Writes the picture of a table, or prints why there is none."""
  try:
    canvas.save(of_table(table, preset, cells, path), picture)
    print(picture)
  except errors.ConfigError as error:
    print(f'no picture: {error.what}')
