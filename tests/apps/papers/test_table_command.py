"""`launchers.table` as a user meets it."""

import csv
import json

import commands
import pytest
from PIL import Image

from fedreid_jax.apps.papers import pictures, report
from fedreid_jax.apps.papers.tables import index

TINY = ('rounds=1', 'model.features=(4,8)', 'data.identities=4')


@pytest.mark.slow
def test_a_row_starts_from_the_run_of_another(tmp_path):
  """Wu and Gong's table 6: local training from the model of the federation."""
  flags = [f'--set={pair}' for pair in (*TINY, 'data.target_identities=6')]
  code, out, err = commands.launch(
    'table',
    '--table=fedreid/table6',
    '--preset=smoke',
    '--only=distilled',
    f'--workdir={tmp_path}',
    *flags,
    timeout=1200.0,
  )
  assert code == 0, err
  assert '[1/2] Direct' in out and '[2/2] Supervised + distilled' in out
  folders = {}
  for path in tmp_path.glob('*/config.json'):
    config = json.loads(path.read_text())
    folders[config['local_expert']['frozen']] = path.parent, config
  direct, own = folders[False], folders[True]
  assert own[1]['start_from'] == str(direct[0]) and not direct[1]['start_from']
  results = [
    json.loads((folder / 'results.json').read_text())['evaluation']
    for folder, _ in (direct, own)
  ]
  served = {e['target']: e for e in results[0] if e['round'] == 1}
  before = {e['target']: e for e in results[1] if e['round'] == 0}
  assert len(served) == 4 and served.keys() == before.keys()
  for target, entry in before.items():
    assert entry['model'] == f'client:{target}'
    assert entry['metrics'] == served[target]['metrics']
  found = tmp_path.glob('fedreid/table6*.csv')
  (table,) = (path for path in found if not path.stem.endswith('-runs'))
  with table.open() as file:
    rows = list(csv.DictReader(file))
  models = {(row['label'], row['model'], row['target']) for row in rows}
  assert models == {('Direct', 'global', target) for target in served} | {
    ('Supervised + distilled', f'client:{target}', target) for target in served
  }


@pytest.mark.slow
def test_a_figure_is_drawn_beside_its_table(tmp_path):
  """A row of DFH's figure 6: a run, transformed from one client."""
  code, out, err = commands.launch(
    'table',
    '--table=dfh/figure6',
    '--only=FH+DH',
    '--preset=smoke',
    f'--workdir={tmp_path}',
    *(f'--set={pair}' for pair in TINY),
    timeout=1200.0,
  )
  assert code == 0, err
  picture = tmp_path / 'dfh' / 'figure6-smoke-FH+DH.png'
  assert out.splitlines()[-1] == str(picture)
  with Image.open(picture) as image:
    assert image.size[0] > 500


@pytest.mark.parametrize(
  'name', ['dfh/figure3', 'dfh/figure4', 'dfh/figure6', 'fedreid/figure4d']
)
def test_without_finished_runs_there_is_no_picture(name, tmp_path, capsys):
  table = index.TABLES[name]
  path = tmp_path / 'table'
  report.write(path, '', [])
  report.write_runs(path, [])
  pictures.write(table, 'smoke', [], path, tmp_path / 'table.png')
  assert capsys.readouterr().out.startswith('no picture: no ')
  assert not (tmp_path / 'table.png').exists()
