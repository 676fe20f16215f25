"""Offline runs of Weights & Biases, read back with its own messages.

Its Python package has no reader of the files, which are logs of LevelDB.
"""

import json
import struct
import time

import numpy as np
import pytest
from measured import PICTURE, write
from PIL import Image

from fedreid_jax.training import callbacks, trackers
from fedreid_jax.training.trackers import Measured

pytest.importorskip('wandb', reason="pip install '.[wandb]'")
pytestmark = pytest.mark.filterwarnings('default')  # of the service's packages
CONFIG = {'name': 'toy', 'seed': 3, 'optim': {'lr': 0.5}}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
  monkeypatch.setenv('WANDB_MODE', 'offline')


def start(workdir, round_=0, resumed=False):
  return callbacks.Start(workdir, CONFIG, round_, resumed)


def messages(content):
  """Yields the messages of a log: blocks of 32 KiB, parts with 7 bytes before.

  A header of 7 bytes is at the start of the file. A part has a checksum, its
  length and its type: 1 is a whole message, 2 to 4 its first, middle and last
  part.
  """
  place, message = 7, b''
  while place < len(content):
    left = 2**15 - place % 2**15
    if left < 7:
      place += left
      continue
    head = content[place : place + 7]
    _, size, kind = struct.unpack('<IHB', head.ljust(7, b'\0'))
    message += content[place + 7 : place + 7 + size]
    place += 7 + size
    if place > len(content):
      return  # the rest is not yet written
    if kind in (1, 4):
      yield message
      message = b''


def close(writer, workdir, error=None):
  """Closes a writer, and waits until the process of the service has written."""
  ended = kinds(workdir).count('exit')
  writer.close(error)
  limit = time.monotonic() + 120
  while kinds(workdir).count('exit') == ended:
    assert time.monotonic() < limit, 'the service has not written the end'
    time.sleep(0.1)


def kinds(workdir):
  return [kind for kind, _ in records(workdir)]


def records(workdir):
  """Returns [(kind, record)] of all sessions, in order."""
  from wandb.proto import wandb_internal_pb2

  found = []
  for path in sorted(workdir.glob('wandb/offline-run-*/run-*.wandb')):
    for message in messages(path.read_bytes()):
      record = wandb_internal_pb2.Record.FromString(message)
      found.append((record.WhichOneof('record_type'), record))
  return found


def lines(workdir):
  """Returns the logged values as dictionaries."""
  return [
    {
      item.key or '/'.join(item.nested_key): json.loads(item.value_json)
      for item in record.history.item
    }
    | {'step': record.history.step.num}
    for kind, record in records(workdir)
    if kind == 'history'
  ]


def test_numbers_images_and_the_configuration(tmp_path):
  writer = trackers.WandbWriter(start(tmp_path))
  shown = {'ranked/mall/global': PICTURE}
  writer.write(Measured('evaluation', 0, {'evaluation/mall/mAP': 5.0}, shown))
  write(writer, 1, 2)
  close(writer, tmp_path)
  before, one, two = lines(tmp_path)
  assert (before['round'], before['step']) == (0, 1)
  assert before['evaluation/mall/mAP'] == 5.0
  (path,) = tmp_path.glob('wandb/offline-run-*/files/media/images/**/*.png')
  with Image.open(path) as image:
    np.testing.assert_array_equal(np.asarray(image), PICTURE)
  assert (one['round'], one['train/loss'], one['step']) == (1, 1.0, 2)
  assert (two['round'], two['client/ash/loss'], two['step']) == (2, 4.0, 4)
  (run,) = [r.run for kind, r in records(tmp_path) if kind == 'run']
  assert (run.project, run.display_name) == ('fedreid_jax', 'toy-seed3')
  values = {item.key: item.value_json for item in run.config.update}
  assert values['optim.lr'] == '0.5'
  (end,) = [r.exit for kind, r in records(tmp_path) if kind == 'exit']
  assert end.exit_code == 0


def test_a_resumed_run_has_the_same_id_and_repeats_nothing(tmp_path):
  writer = trackers.WandbWriter(start(tmp_path))
  write(writer, 1, 2, 3)
  close(writer, tmp_path, ValueError())
  writer = trackers.WandbWriter(start(tmp_path, 2, resumed=True))
  write(writer, 3, 4)
  close(writer, tmp_path)
  assert [line['round'] for line in lines(tmp_path)] == [1, 2, 3, 4]
  ids = {r.run.run_id for kind, r in records(tmp_path) if kind == 'run'}
  entry = json.loads((tmp_path / 'tracking.json').read_text())['wandb']
  assert ids == {entry['id']}
  codes = [r.exit.exit_code for kind, r in records(tmp_path) if kind == 'exit']
  assert sorted(codes) == [0, 1]
