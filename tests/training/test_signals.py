"""Signals end a process at once, or after the current round."""

import os
import signal
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import pytest

from fedreid_jax.training.processes import signals

ROOT = Path(__file__).parents[2]
# Native code that neither returns nor lets Python's handlers run.
BUSY = "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"


def start(body: str) -> subprocess.Popen:
  """Starts a program and waits for its first line."""
  process = subprocess.Popen(
    [
      sys.executable,
      '-c',
      'import hashlib, time\n'
      f'from fedreid_jax.training.processes import signals\n{body}',
    ],
    env=os.environ | {'PYTHONPATH': str(ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout and process.stdout.readline() == 'up\n'
  return process


@pytest.mark.parametrize('number', signals.STOPS)
def test_at_once_in_native_code(number):
  process = start(f'signals.listen()\nprint("up", flush=True)\n{BUSY}')
  process.send_signal(number)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 128 + number
  assert err == f'stopped by {number.name}\n'


def test_an_import_cannot_swallow_it():
  process = start("""
signals.listen()
print('up', flush=True)
while True:
  try:
    time.sleep(100)
  except BaseException:
    pass
""")
  process.send_signal(signal.SIGINT)
  process.communicate(timeout=60)
  assert process.returncode == 130


def test_a_round_is_finished_and_a_second_signal_ends_it():
  process = start(f"""
signals.listen()
with signals.deferred() as caught:
  print('up', flush=True)
  while not caught():
    pass
  print('noted', caught(), flush=True)
  {BUSY}
""")
  process.send_signal(signal.SIGTERM)
  assert process.stdout and process.stdout.readline() == 'noted 15\n'
  process.send_signal(signal.SIGINT)
  process.communicate(timeout=60)
  assert process.returncode == 130


def handlers():
  return [signal.getsignal(number) for number in signals.STOPS]


@pytest.fixture
def listener(monkeypatch):
  """What a command starts."""
  before = handlers()
  one = signals._Listener()
  monkeypatch.setattr(signals, '_listener', one)
  yield one
  one.close()
  assert handlers() == before


def test_a_late_signal_is_not_forgotten(listener):
  with pytest.raises(SystemExit) as info, signals.deferred() as caught:
    assert caught() == 0
    signal.raise_signal(signal.SIGTERM)
  assert info.value.code == 143


def test_a_signal_ends_one_block_and_not_the_next(listener):
  with pytest.raises(SystemExit), signals.deferred():
    signal.raise_signal(signal.SIGTERM)
  with signals.deferred() as caught:
    assert caught() == 0


@pytest.fixture
def interrupts():
  """Python's own SIGINT handler: a job in the background starts without."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


def test_without_a_command_signals_belong_to_the_caller(
  monkeypatch, interrupts
):
  monkeypatch.setattr(signals, '_listener', None)
  before = handlers()
  with pytest.raises(KeyboardInterrupt), signals.deferred() as caught:
    assert handlers() == before and caught() == 0
    signal.raise_signal(signal.SIGINT)


def test_any_thread_may_defer(monkeypatch):
  monkeypatch.setattr(signals, '_listener', None)

  def defer():
    with signals.deferred() as caught:
      return caught()

  with futures.ThreadPoolExecutor() as pool:
    assert pool.submit(defer).result() == 0
