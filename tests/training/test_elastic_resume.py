"""A run with states in files, on other numbers of processes than before."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import commands
import pytest

from fedreid_jax import errors
from fedreid_jax.training.files import client_states

PROGRAM = """
import importlib
import itertools
import json
import os
import pathlib
import signal
import sys

import fedreid_jax as fr
from fedreid_jax.core import trees
from fedreid_jax.training import loop, named_models
from fedreid_jax.training.files import run_files
from fedreid_jax.training.processes import peers

workdir, rounds, fields, output, *starts = sys.argv[1:]
# Imports take longer than a round: each process is a fork of this one.
children = []
for k, start in enumerate(starts):
  children.append(os.fork())
  if not children[-1]:
    break
else:
  ends = [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]
  print(json.dumps(ends))
  sys.exit()

for stream, name in enumerate(('out', 'err'), 1):
  opened = os.open(f'{output}/{k}.{name}', os.O_WRONLY | os.O_CREAT)
  os.dup2(opened, stream)

place, killed = json.loads(start)
if place:
  peers.join(place, 120, 10)
if killed:
  # Ends as if the machine had lost its power, at the n-th call of a function.
  module, owner, name, call = killed.split()
  holder = importlib.import_module(module)
  holder = getattr(holder, owner, holder)
  calls, function = itertools.count(1), getattr(holder, name)

  def counted(*args, **fields):
    if next(calls) == int(call):
      os.kill(os.getpid(), signal.SIGKILL)
    return function(*args, **fields)

  setattr(holder, name, counted)

config = fr.load_config(
  'fedpav:smoke',
  {
    'components': ('fedpav', 'local_models'),
    'model.features': (4, 8),
    'data.identities': 4,
    'data.target_identities': 4,
    'evaluation.every': 2,
    'optim.milestones': (),
    **json.loads(fields),
  },
  rounds=int(rounds),
)
fr.train(config, workdir)
saved = run_files.checkpoints_of(pathlib.Path(workdir))
step = saved.find('latest')
_, personal, _, _ = saved.restore_models(step, personal=True)
models = named_models.restore(saved, 'latest').models
for name, one in (*models.items(), *personal.items()):
  print(step, name, trees.digest(dict(one)))
if place:
  peers.leave()
"""


def launch(
  processes,
  workdir,
  rounds,
  store='disk',
  devices=1,
  more=None,
  kills=None,
  variables=None,
  **execution,
):
  """Runs processes together; returns their codes and what they have printed.

  `kills` has the calls at which processes end, by their numbers; `variables`
  are of the environment.
  """
  execution |= {'store': store}
  fields = {f'execution.{name}': value for name, value in execution.items()}
  fields |= more or {}
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  kills = kills or {}
  starts = [
    (
      f'127.0.0.1:{port},{processes},{k}' if processes > 1 else '',
      kills.get(k, ''),
    )
    for k in range(processes)
  ]
  with tempfile.TemporaryDirectory() as output:
    process = subprocess.Popen(
      [
        *(sys.executable, '-c', PROGRAM),
        *(str(workdir), str(rounds), json.dumps(fields), output),
        *map(json.dumps, starts),
      ],
      env=commands.environment()
      | {'JAX_NUM_CPU_DEVICES': str(devices)}
      | {'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0'}
      | {'PYTHONPATH': str(commands.ROOT)}
      | (variables or {}),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )
    try:
      codes, said = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
      os.killpg(process.pid, signal.SIGKILL)  # its forks as well
      raise
    assert not process.returncode, said
    ends = [
      [Path(output, f'{k}.{name}').read_text() for name in ('out', 'err')]
      for k in range(processes)
    ]
  return json.loads(codes), ends


def start(*args, **fields):
  """Runs processes that succeed; returns the digests that each has printed."""
  codes, ends = launch(*args, **fields)
  assert not any(codes), ends
  # Threads of Gloo print as well, and may break each other's lines.
  return [re.findall(r'\d+ \w+ [0-9a-f]{64}', out) for out, _ in ends]


@pytest.mark.slow
def test_waves_of_two_processes_have_the_digest_of_one(tmp_path):
  """One of the processes has two of three clients, in a wave each."""
  (whole,) = start(1, tmp_path / 'whole', 2)
  assert len(whole) == 1 + 3
  cut = {'image_budget_mb': 1e-3}
  # Both processes render, at the same time.
  own = {'XDG_CACHE_HOME': str(tmp_path / 'cache')}
  for found in start(2, tmp_path / 'cut', 2, variables=own, **cut):
    assert found == whole


# Phases of a run, a process that ends there, and the call.
PHASES = [
  (2, 'fedreid_jax.round.local_rounds LocalRounds wave 1'),
  (0, 'fedreid_jax.training.files.steps - digests 1'),
]


@pytest.mark.slow
def test_processes_that_change_and_are_killed_have_the_digest_of_one(tmp_path):
  """One process, three of two devices, and two, which go on with its run.

  One of the three is killed in two phases. The three and the two keep the
  states of their clients in files, a single process does not: they move them.
  """
  fields = {
    'store': 'auto',
    'more': {
      'data.sources': ('plaza',),
      'data.client_split': 'iid',
      'data.num_clients': 7,
    },
  }
  (whole,) = start(1, tmp_path / 'whole', 3, **fields)
  assert len(whole) == 1 + 7
  cut = tmp_path / 'cut'
  files = cut / 'checkpoints/clients'
  start(1, cut, 1, **fields)
  assert not files.exists()
  for victim, call in PHASES:
    codes, ends = launch(3, cut, 2, devices=2, kills={victim: call}, **fields)
    assert codes.pop(victim) == -signal.SIGKILL, (call, ends)
    assert all(codes), (call, ends)
  three = start(3, cut, 2, devices=2, **fields)
  assert three[0] == three[1] == three[2]
  assert three[0][0].startswith('2 global')
  for found in start(2, cut, 3, **fields):
    assert found == whole
  written = {path.stem.partition('-')[2] for path in files.iterdir()}
  assert {'0', '1'} <= written
  assert not (tmp_path / 'whole/checkpoints/clients').exists()


@pytest.mark.parametrize('is_first, sees', [(1, 1), (0, 1), (0, 0), (1, 0)])
def test_processes_must_see_one_folder(tmp_path, monkeypatch, is_first, sees):
  """`agreement.largest` as if the other process were `sees` or not."""
  folder, calls = tmp_path / 'clients', []

  def largest(own):
    calls.append(own)
    if len(calls) == 1:
      return own or 77
    if len(calls) == 2 and not is_first and sees:
      folder.mkdir()
      (folder / 'probe').write_text('77')
    return max(own, int(len(calls) == 3 and not sees))

  monkeypatch.setattr(client_states.jax, 'process_index', lambda: 1 - is_first)
  monkeypatch.setattr(client_states.peers, 'largest', largest)
  monkeypatch.setattr(client_states.peers, 'joined', lambda: True)
  monkeypatch.setattr(
    client_states.peers, 'leave', lambda: calls.append('left')
  )
  if sees:
    client_states.check_shared(folder)
  else:
    with pytest.raises(errors.ConfigError, match='execution.store'):
      client_states.check_shared(folder)
    assert calls[-1] == 'left'
  assert calls[2] == (not is_first and not sees)
  if is_first:
    assert not (folder / 'probe').exists()
