"""Data sets as arrays, from the official and the prepared folder."""

import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import cache, integrity
from fedreid_jax.data.benchmark import builder, prepared
from fedreid_jax.data.datasets import registry
from fedreid_jax.data.decoder import Decoder, decode

SMALL = Decoder(16, 8)
KINDS = ('market1501', 'cuhk03:query=last', 'cuhk-sysu', 'cifar10', 'llcm')


def root_of(minis, spec):
  return minis(spec.partition(':')[0])


@pytest.mark.parametrize('spec', KINDS)
def test_arrays_say_what_the_records_say(minis, spec):
  dataset, options = registry.parse(spec)
  root = root_of(minis, spec)
  records = registry.read(dataset, root, **options)
  opened = prepared.open_prepared(root, spec, SMALL)
  assert opened.images.shape == (len(records), 16, 8, 3)
  assert opened.names == tuple(record.name for record in records)
  assert opened.people.tolist() == [r.person for r in records]
  assert opened.cameras.tolist() == [r.camera for r in records]
  assert opened.modalities.tolist() == [r.modality for r in records]
  assert opened.splits.tolist() == [r.split for r in records]
  image = registry.open_source(root, dataset, records)
  for row in (0, len(records) // 2, -1):
    np.testing.assert_array_equal(
      opened.images[row], decode(image(records[row]), SMALL)
    )
  train = opened.rows('train')
  assert (opened.splits[train] == 'train').all()
  assert len(train) + len(opened.rows('query', 'gallery', 'test')) == len(
    records
  )


@pytest.mark.parametrize('spec', KINDS)
def test_prepared_and_official_folder_give_the_same(minis, tmp_path, spec):
  root, out = root_of(minis, spec), tmp_path / 'out'
  built, decoded = [], []
  made = prepared.prepare(
    root, spec, out, SMALL, on_build=built.append, on_decode=decoded.append
  )
  direct = prepared.open_prepared(root, spec, SMALL)
  assert sum(built) == sum(decoded) == len(made.names)
  np.testing.assert_array_equal(made.images, direct.images)
  for field in ('people', 'cameras', 'modalities', 'splits', 'names'):
    np.testing.assert_array_equal(getattr(made, field), getattr(direct, field))
  assert 'tensorflow' not in sys.modules


def test_second_call_does_nothing(minis, tmp_path, monkeypatch):
  root, out = minis('viper'), tmp_path / 'out'
  first = prepared.prepare(root, 'viper', out, SMALL)
  monkeypatch.setattr(builder, 'build', None)
  monkeypatch.setattr(builder, 'open_splits', None)
  second = prepared.prepare(root, 'viper', out, SMALL, verify=True)
  assert first.digest == second.digest
  np.testing.assert_array_equal(first.images, second.images)


def test_as_data_source_reads_what_was_written(minis, tmp_path):
  out = tmp_path / 'out'
  prepared.prepare(minis('sysu-mm01'), 'sysu-mm01', out, SMALL)
  dataset, options = registry.parse('sysu-mm01')
  splits = builder.open_splits(builder.folder(out, dataset, options))
  assert {split: len(own) for split, own in splits.items()} == {
    'train': 60,
    'query': 20,
    'gallery': 40,
  }
  example = splits['query'][0]
  name = example['name'].decode()
  assert name == 'cam3/0006/0001.jpg'
  assert example['image'] == (minis('sysu-mm01') / name).read_bytes()
  assert (example['person'], example['camera']) == (6, 3)
  assert example['modality'] == 1


def test_other_sizes_need_no_official_folder(mini_copy, tmp_path):
  root, out = mini_copy('viper'), tmp_path / 'out'
  prepared.prepare(root, 'viper', out, SMALL)
  root.rename(tmp_path / 'gone')
  opened = prepared.open_prepared(out, 'viper', SMALL._replace(height=20))
  assert opened.images.shape == (20, 20, 8, 3)


def test_options_not_prepared(minis, tmp_path):
  out = tmp_path / 'out'
  prepared.prepare(minis('viper'), 'viper', out, SMALL)
  with pytest.raises(errors.DataError, match='not prepared with these options'):
    prepared.open_prepared(out, 'viper:split=half', SMALL)


def test_files_changed_since(mini_copy, tmp_path):
  root, out = mini_copy('viper'), tmp_path / 'out'
  prepared.prepare(root, 'viper', out, SMALL)
  one, two = root / 'cam_a/000_0.bmp', root / 'cam_b/003_90.bmp'
  content = bytearray(one.read_bytes())
  content[-1] ^= 1
  stat = one.stat()
  one.write_bytes(bytes(content))
  os.utime(one, ns=(stat.st_atime_ns, stat.st_mtime_ns))
  prepared.prepare(root, 'viper', out, SMALL)  # the fast look sees nothing
  with pytest.raises(errors.DataError) as caught:
    prepared.prepare(root, 'viper', out, SMALL, verify=True)
  assert '1 file changed after being prepared: cam_a/000_0.bmp' in (
    caught.value.line()
  )
  two.unlink()
  with pytest.raises(errors.DataError, match='cam_b/003_90.bmp'):
    prepared.prepare(root, 'viper', out, SMALL)


def test_interrupted_prepare_is_finished_by_the_next(
  minis, tmp_path, monkeypatch
):
  out = tmp_path / 'out'
  dataset, options = registry.parse('viper')
  folder = builder.folder(out, dataset, options)

  def stop(*_):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    prepared.prepare(minis('viper'), 'viper', out, SMALL, on_build=stop)
  assert not folder.exists()
  # Killed after the records were written, before they were accounted for.
  with monkeypatch.context() as patch:
    patch.setattr(prepared, '_sha256', stop)
    patch.setattr(json, 'dumps', stop)
    with pytest.raises((KeyboardInterrupt, TypeError)):
      prepared.prepare(minis('viper'), 'viper', out, SMALL)
  assert not (folder / prepared.SOURCES).exists()
  with pytest.raises(KeyboardInterrupt):
    prepared.prepare(minis('viper'), 'viper', out, SMALL, on_decode=stop)
  assert (folder / prepared.SOURCES).exists()
  done = prepared.prepare(minis('viper'), 'viper', out, SMALL)
  assert len(done.names) == 20
  left = [p.name for p in out.rglob('*') if 'incomplete' in p.name]
  assert left == [] and not list(out.rglob('*.part'))


def test_killed_prepare_is_finished_by_the_next(minis, tmp_path):
  out, root = tmp_path / 'out', minis('regdb')
  code = (
    'import pathlib, sys, time; '
    'from fedreid_jax.data.benchmark import prepared; '
    'from fedreid_jax.data.decoder import Decoder; '
    'prepared.prepare(pathlib.Path(sys.argv[1]), *sys.argv[2:4], '
    'Decoder(16, 8), on_build=lambda n: (print("on", file=sys.stderr), '
    'time.sleep(0.05)))'
  )
  child = subprocess.Popen(
    [sys.executable, '-c', code, str(root), 'regdb', str(out)],
    stderr=subprocess.PIPE,
  )
  assert child.stderr is not None
  while child.stderr.readline() != b'on\n':
    assert child.poll() is None
  child.send_signal(signal.SIGKILL)
  child.wait()
  child.stderr.close()
  assert list(out.rglob('incomplete.*'))
  done = prepared.prepare(root, 'regdb', out, SMALL)
  assert len(done.names) == 200
  assert not list(out.rglob('incomplete.*'))


def test_unreadable_images_are_named(mini_copy, tmp_path):
  root = mini_copy('cuhk-sysu')
  scene = root / 'Image/SSM/s1.jpg'
  scene.write_bytes(scene.read_bytes()[:300])
  with pytest.raises(errors.DataError) as caught:
    prepared.open_prepared(root, 'cuhk-sysu', SMALL)
  assert (
    'images cannot be read (2 .jpg): Image/SSM/s1.jpg#' in caught.value.line()
  )
  with pytest.raises(errors.FedReIDError):
    prepared.prepare(root, 'cuhk-sysu', tmp_path / 'out', SMALL)
  skipping = SMALL._replace(on_bad_image='skip')
  opened = prepared.open_prepared(root, 'cuhk-sysu', skipping)
  assert 0 < len(opened.names) < 30
  assert len(opened.images) == len(opened.people) == len(opened.names)


def test_library_that_is_not_installed(minis, tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'array_record', None)
  with pytest.raises(errors.ConfigError) as caught:
    prepared.prepare(minis('viper'), 'viper', tmp_path / 'out', SMALL)
  assert "pip install 'fedreid_jax[datasets]'" in caught.value.line()
  assert prepared.open_prepared(minis('viper'), 'viper', SMALL).names


def test_archive_as_root(tmp_path):
  (tmp_path / 'viper.zip').touch()
  with pytest.raises(errors.DataError, match='unpack it first'):
    prepared.open_prepared(tmp_path / 'viper.zip', 'viper', SMALL)


def test_cache_is_outside_the_official_folder(minis):
  before = sorted(minis('viper').rglob('*'))
  prepared.open_prepared(minis('viper'), 'viper', SMALL)
  assert sorted(minis('viper').rglob('*')) == before
  assert list(cache.cache_dir().rglob('images.npy'))


def overwrite(path, share, data=b'damage' * 20):
  with open(path, 'r+b') as file:
    file.seek(int(path.stat().st_size * share))
    file.write(data)


def test_damaged_files_of_a_prepared_set_are_named(minis, tmp_path):
  def failure():
    images = built.with_name(f'{built.name}-images')
    shutil.rmtree(images, ignore_errors=True)
    with pytest.raises(errors.IntegrityError) as caught:
      prepared.open_prepared(tmp_path / 'out', 'viper', SMALL)
    assert caught.value.line().endswith(
      f'{built} — remove the folder and prepare again'
    )
    return caught.value.what

  made = prepared.prepare(minis('viper'), 'viper', tmp_path / 'out', SMALL)
  built = builder.folder(tmp_path / 'out', made.dataset, made.options)
  (record,) = built.glob('*.array_record*')
  whole = record.read_bytes()
  overwrite(record, 0.1)
  assert 'hash mismatch' in failure()
  record.write_bytes(whole[:100])
  assert 'at least 64KB' in failure()
  record.write_bytes(whole)
  sources = integrity.read(built / prepared.SOURCES)
  sources['hashes'][3][1] = sources['hashes'][2][1]
  integrity.write(built / prepared.SOURCES, sources)
  assert failure() == f'{made.names[3]} is not as it was written'
  overwrite(built / prepared.SOURCES, 0.5)
  assert failure() == 'sources.json is not as it was written'


def test_a_file_has_one_hash_however_it_is_read(minis, tmp_path):
  root = minis('cuhk03')  # arrays, written as PNG files
  made = prepared.prepare(root, 'cuhk03', tmp_path / 'out', SMALL)
  direct = prepared.open_prepared(root, 'cuhk03', SMALL)
  np.testing.assert_array_equal(made.files, direct.files)
