"""Trackers on the command line: an experiment from start to end, and errors."""

import csv
import json
import os
from types import SimpleNamespace

import commands
import pytest

from fedreid_jax.cli import run
from fedreid_jax.config import recipes

TINY = 'smoke,model.features=(4,8),data.identities=4,data.target_identities=4'


@pytest.mark.slow
def test_a_command_writes_what_its_trackers_read(tmp_path):
  pytest.importorskip('tensorboardX', reason="pip install '.[test]'")
  flags = f'--config=configs/fedpav.py:{TINY}', f'--workdir={tmp_path / "w"}'
  code, out, err = commands.launch(
    'main', *flags, '--config.track=("csv","tensorboard")'
  )
  assert (code, err) == (0, ''), err
  assert 'unseen targets' in out and 'warning' not in out
  results = json.loads((tmp_path / 'w' / 'results.json').read_text())
  with (tmp_path / 'w' / 'metrics.csv').open(newline='') as file:
    rows = [*csv.DictReader(file)]
  found = {(int(r['round']), r['metric']): float(r['value']) for r in rows}
  for entry in results['evaluation']:
    name = f'evaluation/{entry["target"]}/{entry["model"]}/mAP'
    assert found[entry['round'], name] == entry['metrics']['mAP']
  described = json.loads((tmp_path / 'w' / 'run.json').read_text())
  for client in described['clients']:
    assert (2, f'client/{client["client"]}/loss') in found
  (events,) = (tmp_path / 'w' / 'tensorboard').iterdir()
  assert b'ranked/mall/global' in events.read_bytes()


@pytest.mark.slow
def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
  (tmp_path / 'wandb.py').write_text('raise ImportError("no such thing")')
  paths = os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])
  monkeypatch.setenv('PYTHONPATH', paths)
  process = commands.start(
    'launchers.main',
    f'--config=configs/fedpav.py:{TINY}',
    f'--workdir={tmp_path / "w"}',
    '--config.track=("wandb",)',
  )
  code, out, err = commands.finish(process)
  assert (code, out) == (2, '')
  assert err == (
    'error[2]: wandb needs wandb, which cannot be imported: no such thing '
    "— track — pip install 'fedreid_jax[wandb]'\n"
  )
  assert not (tmp_path / 'w').exists()


def test_trackers_do_not_change_the_default_work_directory(monkeypatch):
  monkeypatch.setattr(run, '_WORKDIR', SimpleNamespace(value=None))
  folders = set()
  for pairs in ('', ',track=("csv",)', ',track_images=0'):
    config = recipes.recipe('fedpav', f'smoke{pairs}')
    monkeypatch.setattr(run, '_given', [config])
    folders.add(run.workdir())
  assert len(folders) == 1
