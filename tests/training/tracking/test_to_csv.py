import csv
from pathlib import Path

import pytest

from fedreid_jax.training import callbacks
from fedreid_jax.training.tracking import to_csv
from fedreid_jax.training.tracking.tracker import Measured


def start(workdir, round_=0, resumed=False):
  return callbacks.Start(workdir, {}, round_, resumed)


def rows(workdir: Path):
  with (workdir / 'metrics.csv').open(newline='') as file:
    return [*csv.reader(file)]


def written(workdir):
  writer = to_csv.Writer(start(workdir))
  writer.write(Measured('evaluation', 0, {'evaluation/a,b/global/mAP': 0.1}))
  writer.write(Measured('round', 1, {'train/loss': 1 / 3, 'train/x "y"': 2.0}))
  writer.write(Measured('round', 2, {'train/loss': float('nan')}))
  writer.close(None)
  return rows(workdir)


def test_the_library_reads_what_was_written(tmp_path):
  header, *found = written(tmp_path)
  assert header == ['round', 'metric', 'value']
  assert found == [
    ['0', 'evaluation/a,b/global/mAP', '0.1'],
    ['1', 'train/loss', '0.3333333333333333'],
    ['1', 'train/x "y"', '2.0'],
    ['2', 'train/loss', 'nan'],
  ]
  assert float(found[1][2]) == 1 / 3


def test_a_resumed_run_drops_later_rounds_and_damaged_lines(tmp_path):
  before = written(tmp_path)
  with (tmp_path / 'metrics.csv').open('a') as file:
    file.write('1,x\n1,train/loss,zero\n1.5,y,2\n2,train/ac')
  writer = to_csv.Writer(start(tmp_path, 1, resumed=True))
  assert rows(tmp_path) == before[:-1]
  writer.write(Measured('round', 2, {'train/loss': 0.5}))
  assert rows(tmp_path) == [*before[:-1], ['2', 'train/loss', '0.5']]


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
  before = written(tmp_path)
  to_csv.Writer(start(tmp_path))
  assert rows(tmp_path) == before[:1]


@pytest.mark.parametrize(
  'line, round_',
  [
    (b'round,metric,value', -1),
    (b'7,"a,b",1e-3', 7),
    *((x, None) for x in (b'', b'7,a', b'7,a,b', b'x,a,1', b'7,\xff,1')),
    *((x, None) for x in (b'7,a,1,2', b'7,"a', b'7,a\x00,')),
  ],
)
def test_the_round_of_a_line(line, round_):
  assert to_csv.round_of(line) == round_
