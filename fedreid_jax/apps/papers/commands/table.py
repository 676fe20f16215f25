"""Run a table of a paper: `fedreid table l2rw/table1`.

  fedreid table --list                       # all tables and rows
  fedreid table dfh/table1 --preset=smoke    # --table=dfh/table1 is the same
  fedreid table --table=dfh/table1 --only=DFH --seeds=0,1,2
  fedreid table --table=dfh/table1 --preset=paper --root=DIR \\
    --set=model.pretrained=resnet50.safetensors
  fedreid table --table=dfh/table3 --preset=paper --root=DIR --available \\
    --only='FedPav;DFH'

The preset `synthetic`, the default, runs the table on built-in images; `smoke`
is a reduced version of it. Only `paper` runs on the published data and shows
the published numbers next to the measured ones. The folder of a run is named
after its configuration, so that tables share runs. The same command resumes a
table. `--available` leaves out the rows whose data sets are not in `--root`,
and `--only` keeps the rows with one of its labels. A table that is a figure is
drawn into a `.png` file beside it, which needs fedreid_jax[viz].
"""

import functools
import itertools
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.papers import grid
from fedreid_jax.apps.papers.tables import declare
from fedreid_jax.apps.papers.tables.index import TABLES
from fedreid_jax.cli import run
from fedreid_jax.config import parsing

_TABLE = flags.DEFINE_string('table', None, 'Name; --list prints all names.')
_LIST = flags.DEFINE_bool('list', False, 'Print tables, rows and commands.')
_PRESET = flags.DEFINE_enum(
  'preset', 'synthetic', list(declare.PRESETS), 'Preset of the data.'
)
_ONLY = flags.DEFINE_string(
  'only', '', 'A label, or part of labels; several with semicolons.'
)
_SEEDS = flags.DEFINE_string('seeds', '0', 'Seeds of every row: 0,1,2.')
_SHARD = flags.DEFINE_string('shard', '', 'I/N: run every N-th run from I.')
_ROOT = flags.DEFINE_string('root', None, 'paper: folder of the data sets.')
_AVAILABLE = flags.DEFINE_bool(
  'available', False, 'paper: leave out rows whose data sets are not in --root.'
)
_SET = flags.DEFINE_multi_string(
  'set', [], 'KEY=VALUE; changes a field in every row.'
)


def main(argv: list[str]) -> None:
  """Trains the runs of a table and prints it."""
  name = _TABLE.value
  if name is None and len(argv) > 1:
    name, argv = argv[1], [argv[0], *argv[2:]]

  def body():
    if _LIST.value:
      return _list(name)
    if run.FLAGS.config:
      raise errors.ConfigError(
        'a table has its own recipes', '--config', 'use --set=KEY=VALUE'
      )
    if name not in TABLES:
      hint = errors.one_of(name, TABLES) if name else 'see --list'
      raise errors.ConfigError(f'no table {name!r}', '--table', hint)
    table = TABLES[name]
    parsing.check_once(_SET.value, '--set')
    folder = Path('runs', 'tables').absolute()
    if run.FLAGS.workdir:
      folder = run.workdir()
    _train(table, folder)

  run.guarded(argv, body, with_jax=not _LIST.value)


def _train(table: declare.Table, folder: Path) -> None:
  """Trains the runs of a table, and draws it if it is a figure."""
  from fedreid_jax.apps.papers import pictures, runner
  from fedreid_jax.figures import canvas
  from fedreid_jax.training import loop

  # Each preset and selection of rows is written to separate files.
  words = '-'.join(filter(None, (table.id, _PRESET.value, _ONLY.value)))
  path = folder / re.sub(r'[^\w/.+-]+', '_', words)
  picture = path.with_name(f'{path.name}.png')
  found = _cells(table, folder)
  labels = {cell.label for cell in found}
  if table.picture:
    canvas.check(picture)  # before the first run
  runner.run(
    found,
    path,
    functools.partial(loop.train, verbose=run.workers() == 1),
    title=_title(table),
    shard=_SHARD.value,
    num_workers=run.workers(),
    baseline=table.baseline if table.baseline in labels else '',
    annotate=lambda lines: declare.annotate(table, _PRESET.value, lines),
  )
  if table.picture:
    pictures.write(table, _PRESET.value, found, path, picture)


def _list(name: str | None) -> None:
  for table in TABLES.values():
    if name not in (None, table.id):
      continue
    print(f'{table.id}  {table.title}')
    for label in dict.fromkeys(row.label for row in table.rows):
      command = shlex.join(
        [f'--table={table.id}', f'--preset={_PRESET.value}', f'--only={label}']
      )
      print(f'  {label:<24} fedreid table {command}')


def _title(table: declare.Table) -> str:
  notes = [table.note]
  if _PRESET.value != 'paper':
    notes.append(
      'On built-in images; published numbers are of other data and not shown.'
    )
  return f'{table.id}: {table.title}\n\n{" ".join(filter(None, notes))}'.strip()


def _cells(table: declare.Table, folder: Path) -> list[Any]:
  """A cell per run; `start_from` becomes the folder of a run."""
  from fedreid_jax.apps.papers import cells

  root = [f'data.root={_ROOT.value!r}'] if _ROOT.value else []
  folders: dict[tuple[str, int], Path] = {}
  found = []
  left_out: dict[str, dict[str, None]] = {}
  for row, seed in itertools.product(
    declare.chosen(table, _ONLY.value), grid.seeds(_SEEDS.value)
  ):
    changes = [*root, *_SET.value, f'seed={seed}']
    for config in declare.runs(row, table, _PRESET.value, changes):
      if config.data.source == 'datasets' and not config.data.root:
        raise errors.ConfigError(
          'the folder of the data sets is missing',
          '--root',
          'give the folder, see docs/datasets.md',
        )
      if _AVAILABLE.value and (lack := cells.lacking(config)):
        left_out.setdefault(lack, {})[row.label] = None
        continue
      # Until here `start_from` is the label of an earlier row, see
      # `declare.runs`: its folder follows from its configuration.
      start = folders.get((config.start_from, config.seed))
      config = replace(config, start_from=str(start or config.start_from))
      # Without factors in the folder's name: tables share runs.
      cell = cells.make_cell(row.label, config, folder, {})
      found.append(cell._replace(factors=row.factors))
      folders.setdefault((row.label, config.seed), found[-1].workdir)
  if not found:
    raise errors.DataError(
      f'no row can be run, for lack of {" and of ".join(left_out)}',
      str(_ROOT.value),
      'see docs/datasets.md',
    )
  for lack, labels in left_out.items():
    line = f'left out for lack of {lack}: {"; ".join(labels)}'
    print(errors.folded(errors.printable(line)))
  return found
