import functools
import io
import json

import pytest
from rich import console

from fedreid_jax import errors
from fedreid_jax.training import callbacks
from fedreid_jax.training.files import recorder


def written(tmp_path, capsys, lines, round_=5):
  """Returns metrics.jsonl and the output after a rewind."""
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(lines)
  start = callbacks.Start(tmp_path, {}, round_, True)
  recorder.Recorder(tmp_path, 9).on_start(start)
  return path.read_bytes(), capsys.readouterr().out


@pytest.mark.parametrize(
  'broken',
  [
    *(b'null', b'17', b'"x"', b'[]', b'{"rou', b'', b'{"round": true}'),
    *(b'{"event": "train"}', b'{"round": "3"}', b'{"round": null}'),
    *(b'\xff\xfe', b'{"round": 2, "x": "\xff"}', b'[' * 100_000),
  ],
)
def test_a_broken_line_is_dropped_and_named(tmp_path, capsys, broken):
  good = [b'{"round": %d}\n' % k for k in range(4)]
  lines = [*good[:2], broken + b'\n', *good[2:]]
  left, said = written(tmp_path, capsys, b''.join(lines))
  assert left == b''.join(good)
  assert said == 'metrics.jsonl: line 3 cannot be read, left out\n'


def test_lost_rounds_and_a_torn_end_are_dropped_silently(tmp_path, capsys):
  lines = b'{"round": 5}\n{"round": 6}\n{"round": 5, "x": 1}\n{"round": 5}'
  left, said = written(tmp_path, capsys, lines)
  assert left == b'{"round": 5}\n{"round": 5, "x": 1}\n' and said == ''


def test_keys_an_object_must_have(tmp_path):
  path = tmp_path / 'run.json'
  path.write_text(json.dumps({'clients': []}))
  assert recorder.read_object(path, 'clients') == {'clients': []}
  with pytest.raises(errors.IntegrityError, match='no data_digest.*run.json'):
    recorder.read_object(path, 'clients', 'data_digest')


def test_phases_are_lines_and_rounds_follow(tmp_path, capsys):
  with recorder.Recorder(tmp_path, 9) as record:
    record.phase('compiling a round: minutes')
  assert capsys.readouterr().out == 'compiling a round: minutes\n'
  with recorder.Recorder(tmp_path, 9, verbose=False) as record:
    record.phase('compiling')
  assert capsys.readouterr().out == ''


def test_the_bar_has_the_round_of_the_line_above_it(tmp_path, monkeypatch):
  screen = io.StringIO()
  terminal = functools.partial(
    console.Console, file=screen, force_terminal=True
  )
  monkeypatch.setattr(recorder.console, 'Console', terminal)
  values = {'seconds': 1.0, 'images_per_second': 1.0, 'lr': 0.1}
  values |= {'bytes_up': 1, 'bytes_down': 1}
  with recorder.Recorder(tmp_path, 3) as record:
    record.phase('compiling a round: minutes')
    record.on_round(callbacks.Round(1, 3, values, {}))
    after = screen.getvalue().rpartition('round    1/3')[2]
  assert 'rounds' in after and '1/3' in after
  assert 'compiling' not in after and '0/3' not in after
