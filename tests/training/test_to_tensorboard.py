"""Event files, read by their format, and by TensorBoard if it is installed."""

import io
import struct
import time

import numpy as np
import pytest
from measured import PICTURE, write
from PIL import Image

from fedreid_jax.training import callbacks, trackers
from fedreid_jax.training.trackers import Measured

pytest.importorskip('tensorboardX', reason="pip install '.[test]'")


def start(workdir, round_=0, resumed=False):
  config = {'name': 'toy', 'optim': {'lr': 0.5}}
  return callbacks.Start(workdir, config, round_, resumed)


def events(workdir):
  """Returns the events of all files: records of 8 + 4 + N + 4 bytes."""
  from tensorboardX.proto import event_pb2

  found = []
  for path in sorted((workdir / 'tensorboard').iterdir()):
    content = path.read_bytes()
    while content:
      (size,) = struct.unpack('<Q', content[:8])
      found.append(event_pb2.Event.FromString(content[12 : 12 + size]))
      content = content[16 + size :]
  return found


def two_sessions(workdir):
  """Four rounds, then a kill, and a resume after the second."""
  killed = trackers.TensorboardWriter(start(workdir))
  shown = {'ranked/mall/global': PICTURE}
  killed.write(Measured('evaluation', 0, {'evaluation/mall/mAP': 5.0}, shown))
  write(killed, 1, 2, 3, 4)
  writer = trackers.TensorboardWriter(start(workdir, 2, resumed=True))
  write(writer, 3, 4, 5)
  writer.close(None)
  killed.close(None)  # for the test only: everything was on the disk


def test_numbers_images_and_the_configuration(tmp_path):
  writer = trackers.TensorboardWriter(start(tmp_path))
  shown = {'ranked/mall/global': PICTURE}
  writer.write(Measured('evaluation', 3, {'evaluation/mall/mAP': 5.5}, shown))
  _, config, event = events(tmp_path)  # before the file is closed
  writer.close(None)
  assert event.step == 3 and abs(event.wall_time - time.time()) < 600
  score, image = event.summary.value
  assert (score.tag, score.simple_value) == ('evaluation/mall/mAP', 5.5)
  assert image.tag == 'ranked/mall/global'
  with Image.open(io.BytesIO(image.image.encoded_image_string)) as found:
    np.testing.assert_array_equal(np.asarray(found), PICTURE)
  (text,) = config.summary.value
  assert b'"lr": 0.5' in text.tensor.string_val[0]


def test_a_resumed_run_marks_the_rounds_that_are_computed_again(tmp_path):
  two_sessions(tmp_path)
  names = sorted(p.name for p in (tmp_path / 'tensorboard').iterdir())
  assert [name.rpartition('.')[2] for name in names] == ['0000', '0001']
  found = events(tmp_path)
  (mark,) = [e for e in found if e.HasField('session_log')]
  assert mark.step == 3 and mark.session_log.status == mark.session_log.START
  later = found[found.index(mark) + 1 :]
  assert [e.step for e in later] == [3, 4, 5]


def test_tensorboard_shows_each_round_once(tmp_path):
  accumulator = pytest.importorskip(
    'tensorboard.backend.event_processing.event_accumulator'
  )
  two_sessions(tmp_path)
  board = accumulator.EventAccumulator(
    str(tmp_path / 'tensorboard'), size_guidance={'images': 0, 'scalars': 0}
  )
  board.Reload()
  shown = board.Scalars('train/loss')
  assert [x.step for x in shown] == [1, 2, 3, 4, 5]
  values = [x.value for x in shown]
  np.testing.assert_allclose(values, [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
  assert [x.value for x in board.Scalars('client/ash/loss')] == [
    *(2.0, 4.0, 6.0, 8.0, 10.0)
  ]
  (image,) = board.Images('ranked/mall/global')
  assert (image.step, image.width, image.height) == (0, 4, 6)
  assert board.Tags()['tensors'] == ['config/text_summary']


def test_a_disk_that_is_full_is_an_exception_here(tmp_path):
  writer = trackers.TensorboardWriter(start(tmp_path))
  writer.close(None)
  with pytest.raises(ValueError, match='closed file'):
    write(writer, 1)
