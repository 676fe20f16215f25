"""Several processes that train cells."""

import functools
import json
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import connection

import pytest

from fedreid_jax import errors
from fedreid_jax.apps.papers.runs import cells as cells_
from fedreid_jax.apps.papers.runs import runner, workers
from fedreid_jax.config import schema
from fedreid_jax.training.processes import signals

DONE = {
  'summary': [],
  'communication_bytes': {'up': 1, 'down': 1},
  'seconds': {'total': 1.0},
}


def write(config, workdir):
  """Writes on which process and which cores a run was trained."""
  workdir.mkdir(parents=True, exist_ok=True)
  found = {'pid': os.getpid(), 'group': os.getpgrp()}
  found['cores'] = sorted(os.sched_getaffinity(0))
  found['gpu'] = os.environ.get('CUDA_VISIBLE_DEVICES')
  found['at'] = time.monotonic()
  text = json.dumps(DONE | found | {'rounds': config.rounds})
  (workdir / 'results.json').write_text(text)


def train(config, workdir, gate):
  """Waits until two runs are trained at once; seed 3 fails, seed 4 is killed.

  A single process could not open the gate.
  """
  if config.seed == 3:
    raise errors.DivergedError('too fast', 'round 3', 'slow')
  if config.seed == 4:
    os.kill(os.getpid(), signal.SIGKILL)
  if config.seed < 2:
    (gate / str(config.seed)).touch()
    end = time.monotonic() + 60
    while len(list(gate.iterdir())) < 2:
      assert time.monotonic() < end
      time.sleep(0.01)
  write(config, workdir)


def train_rounds(config, workdir):
  """Trains until a signal, as the loop does, and saves."""
  workdir.mkdir(parents=True)
  with signals.deferred() as stopped:
    (workdir / 'started').touch()
    while not stopped():
      time.sleep(0.01)
    (workdir / 'saved').touch()


def make_cells(folder, seeds):
  made = []
  for seed in seeds:
    config = schema.default()
    config.seed, config.rounds = seed, 2
    made.append(cells_.make_cell('run', config, folder, {}))
  return made


def found(cell):
  return json.loads((cell.workdir / 'results.json').read_text())


def test_two_processes_train_what_can_be_trained(tmp_path, monkeypatch, capsys):
  """Runs 0 and 1 at once; 2 starts from 0; 3 fails, the process of 4 dies."""
  monkeypatch.setattr(workers, '_gpus', lambda: ['A', 'B'])
  gate = tmp_path / 'gate'
  gate.mkdir()
  cells = make_cells(tmp_path, (2, 0, 1, 4, 3, 5))
  after, first, second, killed, failed, last = cells
  after.config.start_from = str(first.workdir)
  calls = []
  with pytest.raises(errors.FedReIDError, match='2 of 6 runs failed'):
    runner.train_all(
      cells,
      functools.partial(train, gate=gate),
      lambda: calls.append(1),
      num_workers=2,
    )
  assert len(calls) == 6
  assert {found(first)['gpu'], found(second)['gpu']} == {'A', 'B'}
  assert found(first)['pid'] != found(second)['pid'] != os.getpid()
  assert found(first)['group'] == found(first)['pid']  # its terminal's signals
  assert found(after)['at'] > found(first)['at'] and found(last)
  note = (failed.workdir / 'error.txt').read_text()
  assert note.startswith('error[5]: too fast')
  assert not (killed.workdir / 'results.json').exists()
  out = capsys.readouterr().out
  assert out.count('finished') == 4 and out.count('failed') == 2


def test_a_process_that_dies_before_it_is_asked_is_a_failed_run(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(workers, '_gpus', lambda: ['A', 'B'])
  waits, wait = [], connection.wait

  def late(pipes, timeout):
    waits.append(pipes)
    if len(waits) > 1:
      return wait(pipes, timeout)
    while multiprocessing.active_children():  # which joins those that ended
      time.sleep(0.01)
    return []

  monkeypatch.setattr(connection, 'wait', late)
  cells = make_cells(tmp_path, (4,))
  killed = functools.partial(train, gate=tmp_path)
  ((cell, error),) = workers.outcomes(cells, killed, 2)
  assert cell is cells[0] and 'ended with code -9' in str(error)


def test_a_signal_lets_every_round_end(tmp_path, monkeypatch):
  listener = signals._Listener()  # as a command has it
  monkeypatch.setattr(signals, '_listener', listener)
  monkeypatch.setattr(workers, '_gpus', lambda: ['A', 'B'])
  cells = make_cells(tmp_path, (0, 1, 2))

  def stop():
    while len(list(tmp_path.glob('*/started'))) < 2:
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  thread = threading.Thread(target=stop)
  thread.start()
  with pytest.raises(SystemExit) as ended:
    runner.train_all(cells, train_rounds, list, num_workers=2)
  thread.join()
  listener.close()
  assert ended.value.code == 128 + signal.SIGTERM
  assert len(list(tmp_path.glob('*/saved'))) == 2
  assert not cells[2].workdir.exists()


def test_cores_are_shared_without_gpus(monkeypatch):
  monkeypatch.setattr(workers, '_gpus', list)
  monkeypatch.setattr(workers, '_cores', lambda: {7, 1, 2, 5, 3})
  assert workers.places(2) == [('', [1, 3, 7]), ('', [2, 5])]
  with pytest.raises(errors.ConfigError, match='6 processes, 5 cores'):
    workers.places(6)
  monkeypatch.setattr(workers, '_gpus', lambda: ['4', '6'])
  assert [place.gpu for place in workers.places(2)] == ['4', '6']
  with pytest.raises(errors.ConfigError, match='3 processes, 2 GPUs'):
    workers.places(3)


def test_gpus_are_those_of_this_process(monkeypatch):
  monkeypatch.setenv('JAX_PLATFORMS', '')
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2,GPU-ab')
  assert workers._gpus() == ['2', 'GPU-ab']
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
  assert workers._gpus() == []
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '2')
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  assert workers._gpus() == []
