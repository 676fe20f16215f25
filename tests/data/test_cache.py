import errno
import hashlib
import json
import os
import time
from concurrent import futures

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import cache, decoder
from fedreid_jax.data.decoder import Decoder

NAMES = [f'{k:02d}.png' for k in range(10)]
SMALL = Decoder(4, 3)


@pytest.fixture
def root(tmp_path):
  folder = tmp_path / 'images'
  folder.mkdir()
  for k, name in enumerate(NAMES):
    Image.new('RGB', (3, 4), (k, 0, 0)).save(folder / name)
  return folder


def folders():
  return sorted(
    p.name for p in (cache.cache_dir() / 'images').iterdir() if p.is_dir()
  )


def test_images_are_those_of_the_files_in_the_order_asked_for(root):
  images, kept, digest = cache.build(root, NAMES[::-1], SMALL)
  assert images.shape == (10, 4, 3, 3) and images.dtype == np.uint8
  assert isinstance(images, np.memmap)
  assert images[:, 0, 0, 0].tolist() == [*range(9, -1, -1)]
  assert kept.tolist() == [*range(10)]
  (folder,) = folders()
  assert digest.startswith(folder)


def test_manifest_holds_the_hash_of_every_file(root):
  cache.build(root, NAMES, SMALL)
  (folder,) = folders()
  path = cache.cache_dir() / 'images' / folder / 'manifest.json'
  manifest = json.loads(path.read_text())
  assert manifest['sha256']['03.png'] == (
    hashlib.sha256((root / '03.png').read_bytes()).hexdigest()
  )
  assert manifest['decoder'] == SMALL._asdict()


def test_second_call_decodes_nothing(root, monkeypatch):
  cache.build(root, NAMES, SMALL)
  monkeypatch.setattr(decoder, 'decode', None)
  images, _, _ = cache.build(root, NAMES, SMALL)
  assert images[7, 0, 0, 0] == 7


def test_changed_files_and_other_settings_are_decoded_again(root):
  digests = {cache.build(root, NAMES, SMALL)[2]}
  digests.add(cache.build(root, NAMES, SMALL._replace(width=2))[2])
  Image.new('RGB', (3, 4), (99, 0, 0)).save(root / NAMES[0])
  os.utime(root / NAMES[0], ns=(0, time.time_ns() + 10**9))
  images, _, digest = cache.build(root, NAMES, SMALL)
  assert images[0, 0, 0, 0] == 99
  assert len({*digests, digest}) == 3


def test_bad_images_are_all_named(root):
  (root / '02.png').write_bytes(b'')
  (root / '05.png').write_bytes(b'<html>')
  with pytest.raises(errors.DataError) as caught:
    cache.build(root, NAMES, SMALL)
  line = caught.value.line()
  assert line.startswith(
    'error[3]: 2 of 10 images cannot be read: 02.png (empty'
  )
  assert '05.png (cannot identify' in line and str(root) in line
  assert folders() == []


def test_bad_images_may_be_left_out(root):
  (root / '02.png').write_bytes(b'')
  images, kept, _ = cache.build(
    root, NAMES, SMALL._replace(on_bad_image='skip')
  )
  assert kept.tolist() == [0, 1, *range(3, 10)]
  assert images[:, 0, 0, 0].tolist() == kept.tolist()


def test_removed_file_is_named(root):
  (root / '04.png').unlink()
  with pytest.raises(errors.DataError, match='file is gone') as caught:
    cache.build(root, NAMES, SMALL)
  assert caught.value.where.endswith('04.png')


def test_what_a_killed_run_left_is_thrown_away(root):
  cache.build(root, NAMES, SMALL)
  (folder,) = folders()
  path = cache.cache_dir() / 'images' / folder
  (path / 'manifest.json').unlink()  # as if it never got so far
  (path / 'images.npy').write_bytes(b'half')
  path.with_name(folder + '.part').mkdir()
  images, _, _ = cache.build(root, NAMES, SMALL)
  assert images[9, 0, 0, 0] == 9
  assert folders() == [folder]


def test_interrupted_call_leaves_nothing(root):
  calls = []

  def read(k):
    calls.append(k)
    if k == 5:
      raise KeyboardInterrupt
    return (root / NAMES[k]).read_bytes()

  target = root.parent / 'array'
  with pytest.raises(KeyboardInterrupt):
    cache.ensure(target, NAMES, read, SMALL, 'here')
  assert not target.exists() and not (root.parent / 'array.part').exists()


def test_full_disk_is_an_error_not_a_crash(root, monkeypatch):
  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'posix_fallocate', full)
  with pytest.raises(OSError, match='No space left'):
    cache.build(root, NAMES, SMALL)
  assert folders() == []


def test_several_at_once_decode_once(root):
  read = []

  def one(_):
    def image(k):
      read.append(k)
      return (root / NAMES[k]).read_bytes()

    return cache.ensure(root.parent / 'array', NAMES, image, SMALL, 'here')[0]

  with futures.ThreadPoolExecutor(4) as pool:
    arrays = list(pool.map(one, range(4)))
  assert sorted(read) == [*range(10)]
  for array in arrays:
    np.testing.assert_array_equal(array, arrays[0])


def test_progress_adds_up(root):
  done = []
  names = [NAMES[0]] * 150
  data = (root / NAMES[0]).read_bytes()
  cache.ensure(root / 'a', names, lambda k: data, SMALL, 'here', done.append)
  assert sum(done) == 150 and len(done) == 3
