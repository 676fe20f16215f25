"""Batches of decoded files."""

import threading

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data.images import decoder, file_batches

HOW = decoder.Decoder(4, 3)


@pytest.fixture
def paths(tmp_path):
  """Seven files, of which the third and the last cannot be read."""
  found = []
  for number in range(7):
    found.append(tmp_path / f'{number}.png')
    Image.new('RGB', (9, 8), (number, 0, 0)).save(found[-1])
  found[2].write_bytes(b'')
  found[6].unlink()
  return found


def test_positions_belong_to_pixels(paths):
  skipped = []
  found = [*file_batches.read(paths, HOW, 3, lambda *bad: skipped.append(bad))]
  assert [rows.tolist() for rows, _ in found] == [[0, 1], [3, 4, 5], []]
  for rows, pixels in found:
    assert pixels.shape == (len(rows), 4, 3, 3) and pixels.dtype == np.uint8
    assert (pixels[..., 0] == rows[:, None, None]).all()
  assert skipped == [(2, 'empty file'), (6, 'No such file or directory')]


def test_a_file_that_cannot_be_read_is_named(paths):
  batches = file_batches.read(paths, HOW, 2)
  assert next(batches)[0].tolist() == [0, 1]
  with pytest.raises(errors.DataError, match=r'empty file — .*2\.png'):
    next(batches)


def test_one_batch_is_decoded_ahead(paths, monkeypatch):
  decoded, decode, lock = [], decoder.decode, threading.Lock()

  def counting(data, how):
    with lock:
      decoded.append(data)
    return decode(data, how)

  monkeypatch.setattr(decoder, 'decode', counting)
  batches = file_batches.read([paths[0]] * 100, HOW, 5)
  for number, _ in zip(range(1, 4), batches, strict=False):
    assert 5 * number <= len(decoded) <= 5 * (number + 1)
  batches.close()
  assert len(decoded) <= 20


def test_nothing_is_read_of_no_files():
  assert [*file_batches.read([], HOW, 5)] == []
