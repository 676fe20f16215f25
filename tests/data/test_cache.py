import errno
import hashlib
import json
import os
import shutil
import time
from concurrent import futures

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import cache, decoder, integrity
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
  images, manifest, digest = cache.build(root, NAMES[::-1], SMALL)
  assert images.shape == (10, 4, 3, 3) and images.dtype == np.uint8
  assert isinstance(images, np.memmap)
  assert images[:, 0, 0, 0].tolist() == [*range(9, -1, -1)]
  assert manifest['kept'] == [*range(10)]
  (folder,) = folders()
  assert digest.startswith(folder)


def test_manifest_holds_the_hash_of_every_file(root):
  cache.build(root, NAMES, SMALL)
  (folder,) = folders()
  path = cache.cache_dir() / 'images' / folder / 'manifest.json'
  manifest = json.loads(path.read_text())['content']
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
    'error[3]: 2 of 10 images cannot be read (2 .png): 02.png (empty'
  )
  assert '05.png (not an image in JPEG, PNG, WEBP' in line and str(root) in line
  assert folders() == []


def test_bad_images_may_be_left_out_and_are_named_every_time(root, capsys):
  (root / '02.png').write_bytes(b'')
  for _ in range(2):
    images, manifest, _ = cache.build(
      root, NAMES, SMALL._replace(on_bad_image='skip')
    )
    assert manifest['kept'] == [0, 1, *range(3, 10)]
    assert images[:, 0, 0, 0].tolist() == manifest['kept']
    assert capsys.readouterr().err == (
      f'note: 1 of 10 images of {root} cannot be read and is left out '
      '(1 .png): 02.png (empty file)\n'
    )


def test_removed_file_is_named(root):
  (root / '04.png').unlink()
  with pytest.raises(errors.DataError, match='file is missing') as caught:
    cache.build(root, NAMES, SMALL)
  assert caught.value.where.endswith('04.png')


def test_leftovers_of_a_killed_run_are_deleted(root, capsys):
  images, _, digest = cache.build(root, NAMES, SMALL)
  path = cache.cache_dir() / 'images' / digest[:24]
  path.rename(path.with_name(path.name + '.part'))  # it never got further
  images, _, _ = cache.build(root, NAMES, SMALL)
  assert images[9, 0, 0, 0] == 9
  assert folders() == [path.name]
  assert capsys.readouterr().err == ''


def flip(path):
  data = bytearray(path.read_bytes())
  data[len(data) * 3 // 4] ^= 1
  path.write_bytes(data)


@pytest.mark.parametrize(
  ('damage', 'said'),
  [
    (lambda f: flip(f / 'images.npy'), 'images.npy is not as it was written'),
    (lambda f: os.truncate(f / 'images.npy', 300), 'images.npy is not as'),
    (lambda f: (f / 'images.npy').unlink(), 'no images.npy'),
    (lambda f: flip(f / 'manifest.json'), 'manifest.json is not as it was'),
    (lambda f: (f / 'manifest.json').write_text(''), 'manifest.json is not'),
    (lambda f: (f / 'manifest.json').write_text('null'), 'manifest.json is'),
    (lambda f: (f / 'manifest.json').write_bytes(b'\xff'), 'manifest.json is'),
    (lambda f: (f / 'manifest.json').unlink(), 'no manifest.json'),
  ],
)
def test_a_damaged_array_is_made_again(root, capsys, damage, said):
  before, manifest, digest = cache.build(root, NAMES, SMALL)
  before = np.array(before)
  folder = cache.cache_dir() / 'images' / digest[:24]
  damage(folder)
  images, again, _ = cache.build(root, NAMES, SMALL)
  np.testing.assert_array_equal(images, before)
  assert again == manifest
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f'note: {folder} is damaged ({said}')
  cache.build(root, NAMES, SMALL)
  assert capsys.readouterr().err == ''


def test_an_array_under_the_name_of_another_is_made_again(root, capsys):
  one = cache.build(root, NAMES, SMALL)[2]
  two = cache.build(root, NAMES[::-1], SMALL)[2]
  base = cache.cache_dir() / 'images'
  shutil.rmtree(base / two[:24])
  (base / one[:24]).rename(base / two[:24])
  images, _, _ = cache.build(root, NAMES[::-1], SMALL)
  assert images[:, 0, 0, 0].tolist() == [*range(9, -1, -1)]
  assert 'is damaged (renamed)' in capsys.readouterr().err


def test_the_array_is_read_again_only_when_it_looks_changed(
  root, monkeypatch, capsys
):
  digest = cache.build(root, NAMES, SMALL)[2]
  array = cache.cache_dir() / 'images' / digest[:24] / 'images.npy'
  read = []
  sha256 = integrity._sha256
  monkeypatch.setattr(
    integrity, '_sha256', lambda p: read.append(p) or sha256(p)
  )
  cache.build(root, NAMES, SMALL)
  assert not read
  os.utime(array, ns=(0, 1))
  for _ in range(2):
    cache.build(root, NAMES, SMALL)
    assert read == [array]
  assert capsys.readouterr().err == ''


def test_chunks_are_hashed_in_order(tmp_path, monkeypatch):
  monkeypatch.setattr(integrity, '_CHUNK', 4)
  (tmp_path / 'a').write_bytes(b'abcdefgh12')
  (tmp_path / 'b').write_bytes(b'efghabcd12')
  one = b''.join(
    hashlib.sha256(part).digest() for part in (b'abcd', b'efgh', b'12')
  )
  assert integrity.add(tmp_path / 'a') == hashlib.sha256(one).hexdigest()
  assert integrity.add(tmp_path / 'b') != integrity.add(tmp_path / 'a')


def test_interrupted_call_leaves_no_files(root):
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
  with pytest.raises(errors.ResourceError, match='No space left'):
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
