"""Callbacks in a run of two processes: the first calls them, and both end."""

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from fedreid_jax.training.processes import peers

place, *workdirs = sys.argv[1:]
peers.join(place, 120, 30)

import fedreid_jax as fr


class Ends(fr.Callback):
  def __init__(self, error):
    self.error = error

  def on_round(self, event):
    print('round', event.round)
    if event.round == 2:
      raise self.error


config = fr.load_config(
  'fedpav:smoke',
  {
    'model.features': (4, 8),
    'data.identities': 4,
    'data.target_identities': 4,
    'evaluation.every': 4,
    'track': ('csv',),
  },
  rounds=4,
)
for workdir, error in zip(workdirs, (fr.StopTraining, ValueError), strict=True):
  try:
    print(fr.train(config, workdir, callbacks=[Ends(error())])['rounds'])
  except Exception as found:
    print(type(found).__name__)
peers.leave()
"""


@pytest.mark.slow
def test_a_callback_of_the_first_process_ends_both(tmp_path):
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  workdirs = tmp_path / 'stop', tmp_path / 'fail'
  cache = str(jax.config.jax_compilation_cache_dir)
  processes = [
    subprocess.Popen(
      [
        *(sys.executable, '-c', PROGRAM),
        *(f'127.0.0.1:{port},2,{k}', *workdirs),
      ],
      env=os.environ
      | {'JAX_NUM_CPU_DEVICES': '1', 'JAX_COMPILATION_CACHE_DIR': cache}
      | {'PYTHONPATH': str(ROOT)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for k in range(2)
  ]
  said = [process.communicate(timeout=240) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], said
  lines = [
    [line for line in out.splitlines() if not line.startswith('[Gloo]')]
    for out, _ in said
  ]
  both = ['round 1', 'round 2']
  assert lines == [[*both, '2', *both, 'ValueError'], ['2', 'ResourceError']]
  for workdir in workdirs:
    assert (workdir / 'checkpoints' / 'manifest-2.json').is_file()
    with (workdir / 'metrics.csv').open(newline='') as file:
      found = [(row['round'], row['metric']) for row in csv.DictReader(file)]
    assert len(set(found)) == len(found)
    assert {round_ for round_, _ in found} == {'0', '1', '2'}
