"""The lines of metrics.jsonl letter by letter, and metrics of the clients."""

import functools
import io
import json

import numpy as np
import pytest
from rich import console

from fedreid_jax import errors
from fedreid_jax.figures import curves
from fedreid_jax.training import callbacks, trackers
from fedreid_jax.training.files import recorder, run_files, sealed

ROUND = callbacks.Round(
  1,
  9,
  {
    **dict.fromkeys(('seconds', 'images_per_second', 'lr'), 1.5),
    **{'bytes_up': 1, 'bytes_down': 2, 'clients': ['ash']},
  },
  {'ash': {'loss': 2}},
)
EVALUATION = callbacks.Evaluation(
  1,
  (
    {'round': 1, 'model': 'global', 'target': 'é', 'metrics': {'mAP': 10.0}},
    {'round': 1, 'model': 'client:ash', 'target': 'b', 'metrics': {'mAP': 0.5}},
  ),
  {},
)


def written_to_jsonl(folder):
  record = recorder.Recorder(folder, 9, verbose=False)
  record.on_round(ROUND)
  record.on_evaluation(EVALUATION)
  return record, folder / 'metrics.jsonl'


def test_a_line_has_the_entries_in_their_order_and_the_metrics_of_clients(
  tmp_path,
):
  _, path = written_to_jsonl(tmp_path)
  assert path.read_bytes().decode('ascii').splitlines() == [
    '{"round": 1, "event": "train", "seconds": 1.5, "images_per_second": 1.5, '
    '"lr": 1.5, "bytes_up": 1, "bytes_down": 2, "clients": ["ash"], '
    '"by_client": {"ash": {"loss": 2}}}',
    '{"round": 1, "event": "eval", "model": "global", "target": "\\u00e9", '
    '"metrics": {"mAP": 10.0}, "mAP": 10.0}',
    '{"round": 1, "event": "eval", "model": "client:ash", "target": "b", '
    '"metrics": {"mAP": 0.5}, "mAP": 0.5}',
  ]


def resume(record, folder, round_, copies=None):
  """Resumes as the loop does; `copies` are files of the checkpoint."""
  if not (folder / 'results.json').exists():
    record.results({})
  record.resume(round_, copies or {})
  record.results({'rounds': round_})
  record.on_start(callbacks.Start(folder, {}, round_, True))


def test_rounds_that_are_computed_again_are_dropped(tmp_path, monkeypatch):
  record, path = written_to_jsonl(tmp_path)
  lines, said = path.read_bytes(), []
  monkeypatch.setattr(record, 'say', said.append)
  record.event(2, 'warning', {'warning': 'x'})
  with path.open('ab') as file:
    file.write(b'{"round": "one"}\n{"round": 3, "ev')
  resume(record, tmp_path, 1)
  assert said == ['metrics.jsonl: line 5 cannot be read, left out']
  assert path.read_bytes() == lines
  resume(record, tmp_path, 0)
  assert path.read_bytes() == b''


def test_a_failure_is_an_error_of_the_run(tmp_path):
  (tmp_path / 'metrics.jsonl').mkdir()
  with pytest.raises(errors.ResourceError):
    written_to_jsonl(tmp_path)


def written(tmp_path, capsys, lines, round_=5):
  """Returns metrics.jsonl and the output after a rewind."""
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(lines)
  resume(recorder.Recorder(tmp_path, 9), tmp_path, round_)
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


@pytest.mark.parametrize(
  'damage',
  [
    lambda rows: rows.replace(b'94.8', b'99.8'),
    lambda rows: rows[len(b'{"round": 1}\n') :],
    lambda rows: b'',
    None,
  ],
)
def test_damaged_rows_are_told_and_restored_from_the_checkpoint(
  tmp_path, damage
):
  def results():
    return run_files.results(tmp_path)

  record, path = recorder.Recorder(tmp_path, 9), tmp_path / 'metrics.jsonl'
  record.event(1, 'train', {'loss': 5.5})
  record.event(2, 'eval', {'mAP': 94.8})
  record.results({'rounds': 2})
  copies = {'metrics.jsonl': path.read_bytes()}
  record.event(3, 'train', {'loss': 1.5})  # after the checkpoint
  assert results()['rounds'] == 2
  if damage is None:
    path.unlink()
  else:
    path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(errors.IntegrityError, match='metrics.jsonl') as info:
    results()
  assert info.value.exit_code == 4
  again = recorder.Recorder(tmp_path, 9)
  with pytest.warns(
    errors.DamagedRecordWarning, match='until round 2 are restored'
  ):
    resume(again, tmp_path, 2, copies)
  assert path.read_bytes() == copies['metrics.jsonl']
  again.event(3, 'train', {'loss': 1.5})
  again.results({'rounds': 3})
  assert results()['files']['metrics.jsonl'] == sealed.described(
    path.read_bytes()
  )


def test_a_kill_at_any_write_of_a_resume_leaves_files_that_agree(tmp_path):
  record = recorder.Recorder(tmp_path, 9)
  record.event(1, 'train', {})
  copies = {'metrics.jsonl': (tmp_path / 'metrics.jsonl').read_bytes()}
  record.event(2, 'train', {})
  record.results({'rounds': 2})  # killed before the checkpoint of round 2
  again = recorder.Recorder(tmp_path, 9)
  for write in (
    lambda: again.resume(1, copies),
    lambda: again.results({'rounds': 1}),
    lambda: again.on_start(callbacks.Start(tmp_path, {}, 1, True)),
    lambda: again.event(2, 'train', {}),
  ):
    write()
    run_files.results(tmp_path)


def test_an_edited_figure_is_told(tmp_path):
  recorder.Recorder(tmp_path, 9).results({'mAP': 94.7})
  path = tmp_path / 'results.json'
  path.write_text(path.read_text().replace('94.7', '94.8'))
  with pytest.raises(errors.IntegrityError, match='its digest differs'):
    run_files.results(tmp_path)


def test_queries_have_a_digest_until_the_run_goes_on(tmp_path):
  record, path = recorder.Recorder(tmp_path, 2), tmp_path / 'queries.npz'
  path.with_name('metrics.jsonl').touch()
  record.queries({('global', 'mall'): [np.array([0.5, 0.25])]})
  record.results({})
  copies = {'queries.npz': path.read_bytes(), 'metrics.jsonl': b''}
  changed = {'global/mall/0': np.array([0.5, 0.75])}
  recorder.write_arrays(path, changed)
  with pytest.raises(errors.IntegrityError, match='queries.npz'):
    run_files.results(tmp_path)
  with pytest.warns(errors.DamagedRecordWarning, match='queries.npz'):
    resume(recorder.Recorder(tmp_path, 2), tmp_path, 2, copies)
  found = run_files.precision(tmp_path, run_files.results(tmp_path))
  assert found['global/mall/0'].tolist() == [0.5, 0.25]
  resume(recorder.Recorder(tmp_path, 3), tmp_path, 2, copies)
  assert not run_files.precision(tmp_path, run_files.results(tmp_path))


def test_a_changed_file_of_clients_is_told(tmp_path):
  digest = sealed.described(recorder.write_clients(tmp_path, 1, CLIENTS))
  assert recorder.read_clients(tmp_path, 1, digest) == CLIENTS
  recorder.write_clients(tmp_path, 1, {'ash': CLIENTS['birch']})
  with pytest.raises(errors.IntegrityError, match='1.npz'):
    recorder.read_clients(tmp_path, 1, digest)
  (tmp_path / 'client-metrics/1.npz').unlink()
  with pytest.raises(errors.IntegrityError, match='is missing'):
    recorder.read_clients(tmp_path, 1, digest)


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


CLIENTS = {
  'ash': {'loss': 0.1, 'weight': 0.75},
  'birch': {'loss': 1 / 3, 'weight': 0.25},
}


def test_a_small_cohort_is_in_lines():
  assert recorder.client_form('auto', 16) == 'lines'
  assert recorder.client_form('auto', 17) == 'summary'
  assert recorder.client_form('files', 2) == 'files'
  assert recorder.client_form('lines', 10**4) == 'lines'


def test_the_summary_of_each_metric():
  clients = CLIENTS | {'cedar': {'loss': 5.0, 'weight': 0.0}}
  assert recorder.over_clients(clients) == {
    'loss': {'min': 0.1, 'median': 1 / 3, 'max': 5.0},
    'weight': {'min': 0.0, 'median': 0.25, 'max': 0.75},
  }
  assert recorder.over_clients({}) == {}


@pytest.mark.parametrize('form', ['lines', 'files', 'summary'])
def test_a_round_is_in_a_line_in_a_file_or_in_neither(tmp_path, form):
  record = recorder.Recorder(tmp_path, 3, verbose=False)
  values = {'loss': 0.2, 'seconds': 1.0, 'images_per_second': 2.0, 'lr': 0.1}
  values |= {'bytes_up': 1, 'bytes_down': 1}
  event = callbacks.Round(1, 3, values, CLIENTS, form)
  record.on_round(event)
  (line,) = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert ('by_client' in json.loads(line)) == (form == 'lines')
  assert (recorder.read_clients(tmp_path, 1) == CLIENTS) == (form == 'files')
  names = trackers.of_round(event).scalars
  assert ('client/ash/loss' in names) == (form == 'lines')
  assert names['train/loss'] == 0.2


def test_files_are_columns_and_later_rounds_are_deleted(tmp_path):
  for round_ in (1, 2, 10):
    recorder.write_clients(tmp_path, round_, CLIENTS)
  with np.load(tmp_path / 'client-metrics/2.npz') as saved:
    assert saved['client'].tolist() == ['ash', 'birch']
    assert saved['loss'].tolist() == [0.1, 1 / 3]
  recorder.rewind_clients(tmp_path, 2)
  assert recorder.read_clients(tmp_path, 10) == {}
  assert recorder.read_clients(tmp_path, 2) == CLIENTS
  lines = [
    {'round': k, 'by_client': recorder.read_clients(tmp_path, k)}
    for k in (1, 2)
  ]
  assert curves.of_clients(lines, 'loss')['birch'] == {1: 1 / 3, 2: 1 / 3}


def test_a_round_without_a_valid_client(tmp_path):
  recorder.write_clients(tmp_path, 1, {})
  assert recorder.read_clients(tmp_path, 1) == {}


def test_a_damaged_file_is_named(tmp_path):
  recorder.write_clients(tmp_path, 1, CLIENTS)
  (tmp_path / 'client-metrics/1.npz').write_bytes(b'PK\x03\x04')
  with pytest.raises(errors.IntegrityError, match='1.npz'):
    recorder.read_clients(tmp_path, 1)
