"""Vectors of a folder of images: their files, and what is refused."""

import csv
import dataclasses
import json

import numpy as np
import pytest
from PIL import Image, ImageOps

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.apps.deploy import vectors
from fedreid_jax.config import validation
from fedreid_jax.training import snapshot


def extractor(batch):
  """Features that tell images and modalities apart: mean colour, modality."""

  def extract(variables, images, modalities):
    assert len(images) <= batch
    colour = images.reshape(len(images), -1, 3).mean(1)
    return np.c_[colour, modalities].astype(np.float32)

  return extract


@pytest.fixture(scope='module')
def model():
  config = validation.validate(
    fr.load_config('fedpav:smoke', {'evaluation.metric': 'cosine'})
  )
  return snapshot.Snapshot(config, {}, 3, 'global', extractor, 'abc')


@pytest.fixture
def photos(tmp_path):
  """Five images in two folders, whose red is 10 times their number."""
  root = tmp_path / 'photos'
  (root / 'Zoë').mkdir(parents=True)
  names = ['Zoë/1,5 "x".png', 'Zoë/2.bmp', 'a.png', 'b.webp', 'c.png']
  for number, name in enumerate(names):
    image = Image.new('RGB', (20, 30), (10 * number, 0, 0))
    image.save(root / name, lossless=True)
  return root


NAMES = ['Zoë/1,5 "x".png', 'Zoë/2.bmp', 'a.png', 'b.webp', 'c.png']


def write(model, root, out, skip=False, **options):
  folder = vectors.folder_of(root, '--images', skip)
  return vectors.write(model, folder, out, skip=skip, **options)


def test_three_files_that_belong_together(model, photos, tmp_path):
  out, advanced = tmp_path / 'vectors.npy', []
  found = write(model, photos, out, batch=2, advance=advanced.append)
  rows = np.load(out)
  assert rows.dtype == np.float32
  assert rows[:, 0].tolist() == [0, 10, 20, 30, 40]
  assert not rows[:, 1:].any()
  np.testing.assert_array_equal(found.rows, rows)
  with open(tmp_path / 'paths.csv', encoding='utf-8', newline='') as file:
    lines = list(csv.reader(file))
  assert lines == [['index', 'path']] + [
    [str(k), name] for k, name in enumerate(NAMES)
  ]
  described = json.loads((tmp_path / 'vectors.json').read_text())
  assert described['metric'] == 'cosine' and described['modality'] is None
  assert described['model'] == {
    'digest': 'abc',
    'recipe': 'fedpav',
    'name': 'global',
    'round': 3,
  }
  assert found.folder == vectors.Folder(photos, NAMES, [])
  assert sum(advanced) == 5 and len(advanced) >= 3
  assert {p.name for p in tmp_path.iterdir()} == {
    *('photos', 'vectors.npy', 'vectors.json', 'paths.csv')
  }


def test_images_of_videos_have_times(model, photos, tmp_path):
  times = {NAMES[0]: 0.0, NAMES[3]: 12.3}
  found = write(model, photos, tmp_path / 'v.npy', times=times)
  assert found.times == times
  with open(tmp_path / 'v-paths.csv', encoding='utf-8', newline='') as file:
    lines = [[row['path'], row['time']] for row in csv.DictReader(file)]
  seconds = ['0.000', '', '', '12.300', '']
  assert lines == [[*one] for one in zip(NAMES, seconds, strict=True)]


def test_other_names_do_not_share_a_list_of_paths(model, photos, tmp_path):
  write(model, photos, tmp_path / 'vectors.npy')
  write(model, photos / 'Zoë', tmp_path / 'some.npy')
  assert (tmp_path / 'some-paths.csv').exists()
  assert vectors.read(tmp_path / 'vectors.npy').folder.names == NAMES
  assert vectors.read(tmp_path / 'some.npy').folder.names == [
    '1,5 "x".png',
    '2.bmp',
  ]


@pytest.mark.parametrize('kind', [0, 1])
def test_the_modality_reaches_the_model(model, photos, tmp_path, kind):
  found = write(model, photos, tmp_path / 'v.npy', modality=kind)
  assert found.rows[:, 3].tolist() == [kind] * 5
  assert found.described['modality'] == kind


@pytest.mark.parametrize('rows', [1, 9, 10, 99, 100, 12345])
def test_a_header_for_any_number_of_rows(tmp_path, rows):
  parts = [np.split(np.arange(rows * 3, dtype=np.float32), [3])]
  parts = [
    (np.arange(len(p) // 3), p.reshape(-1, 3)) for p in parts[0] if len(p)
  ]
  written = vectors._write_rows(tmp_path / 'r.npy', iter(parts), lambda _: 0)
  assert (len(written[0]), written[1]) == (rows, 3)
  np.testing.assert_array_equal(
    np.load(tmp_path / 'r.npy').ravel(), np.arange(rows * 3)
  )


@pytest.mark.parametrize('batch', [1, 2, 5])
def test_unreadable_files_are_named_or_left_out(model, photos, tmp_path, batch):
  (photos / 'a.png').write_bytes(b'')
  (photos / 'd.jpg').symlink_to('nothing')
  with pytest.raises(errors.DataError, match='link is broken — .*d.jpg'):
    write(model, photos, tmp_path / 'v.npy')
  (photos / 'd.jpg').unlink()
  with pytest.raises(errors.DataError, match=r'empty file — .*a\.png'):
    write(model, photos, tmp_path / 'v.npy', batch=batch)
  assert [p.name for p in tmp_path.iterdir()] == ['photos']
  (photos / 'd.jpg').symlink_to('nothing')
  found = write(model, photos, tmp_path / 'v.npy', True, batch=batch)
  assert found.rows[:, 0].tolist() == [0, 10, 30, 40]
  assert found.folder.names == [NAMES[k] for k in (0, 1, 3, 4)]
  assert found.folder.left_out == [
    ('d.jpg', 'the link is broken'),
    ('a.png', 'empty file'),
  ]


def test_no_readable_image(model, tmp_path):
  (tmp_path / 'photos').mkdir()
  with pytest.raises(errors.DataError, match='no images'):
    write(model, tmp_path / 'photos', tmp_path / 'v.npy')
  (tmp_path / 'photos/a.png').touch()
  with pytest.raises(errors.DataError, match='no image can be read .1 file.'):
    write(model, tmp_path / 'photos', tmp_path / 'v.npy', True)
  assert not (tmp_path / 'v.npy.partial').exists()


def test_pictures_as_cameras_write_them(model, tmp_path):
  """Turned, CMYK, palette, grey and transparent files, as the decoder does."""
  root = tmp_path / 'photos'
  root.mkdir()
  rng = np.random.default_rng(0)
  upright = Image.fromarray(rng.integers(0, 256, (32, 16, 3), np.uint8))
  turned = ImageOps.mirror(upright.transpose(Image.Transpose.ROTATE_90))
  tags = Image.Exif()
  tags[0x0112] = 5  # orientation: mirrored and turned
  turned.save(root / 'exif.png', exif=tags)
  upright.convert('CMYK').save(root / 'cmyk.jpg', quality=100)
  upright.convert('P').save(root / 'palette.gif')
  upright.convert('L').save(root / 'grey.bmp')
  upright.convert('RGBA').save(root / 'alpha.webp', lossless=True)
  plain = np.asarray(upright).reshape(-1, 3).mean(0)
  found = write(model, root, tmp_path / 'v.npy')
  by_name = dict(zip(found.folder.names, found.rows[:, :3], strict=True))
  np.testing.assert_allclose(by_name['exif.png'], plain, atol=0.01)
  np.testing.assert_allclose(by_name['alpha.webp'], plain, atol=0.01)
  assert len(set(by_name['grey.bmp'])) == 1 and len(by_name) == 5
  deep = Image.fromarray(np.zeros((8, 8), np.uint16))
  deep.save(root / 'deep.png')
  with pytest.raises(errors.DataError, match='not 8 bits a channel — .*deep'):
    write(model, root, tmp_path / 'v.npy')


def test_files_of_others_are_not_replaced(model, photos, tmp_path):
  for name in ('vectors.npy', 'paths.csv'):
    (tmp_path / name).write_text('mine')
    with pytest.raises(errors.ConfigError, match=name):
      vectors.check_out(tmp_path / 'vectors.npy')
    (tmp_path / name).unlink()
  write(model, photos, tmp_path / 'vectors.npy')
  vectors.check_out(tmp_path / 'vectors.npy')  # its own may be replaced
  write(model, photos / 'Zoë', tmp_path / 'vectors.npy')
  assert len(vectors.read(tmp_path / 'vectors.npy').rows) == 2
  for name in ('v.txt', 'v', '.npy'):
    with pytest.raises(errors.ConfigError, match=r'\.npy'):
      vectors.check_out(tmp_path / name)
  with pytest.raises(errors.ResourceError, match='No such file'):
    vectors.check_out(tmp_path / 'none' / 'v.npy')


def test_vectors_of_another_model_are_refused(model, photos, tmp_path):
  found = write(model, photos, tmp_path / 'v.npy')
  vectors.check_model(found, model, 'v.npy')
  other = dataclasses.replace(model, digest='xyz', step=9)
  with pytest.raises(errors.IntegrityError) as caught:
    vectors.check_model(found, other, 'v.npy')
  assert caught.value.line() == (
    'error[4]: the vectors are of another model (fedpav, global, round 3, abc) '
    'than the given one (fedpav, global, round 9, xyz) — v.npy — '
    'embed the gallery with this model, or give the model of the vectors'
  )


def damage_rows(folder):
  np.save(folder / 'vectors.npy', np.load(folder / 'vectors.npy') + 1)


def damage_shape(folder):
  np.save(folder / 'vectors.npy', np.load(folder / 'vectors.npy')[:4])


def damage_order(folder):
  path = folder / 'paths.csv'
  first, *lines = path.read_text().splitlines()
  path.write_text('\n'.join([first, *lines[::-1]]))


def damage_line(folder):
  path = folder / 'paths.csv'
  path.write_text(path.read_text().rpartition('\n4')[0] + '\n')


def cut(folder):
  path = folder / 'vectors.npy'
  path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
  'damage, message',
  [
    (damage_rows, 'is not as vectors.json describes it'),
    (damage_shape, 'is not as vectors.json describes it'),
    (damage_order, 'does not list the 5 vectors in their order'),
    (damage_line, 'does not list the 5 vectors in their order'),
    (cut, 'cannot be read'),
    (lambda f: (f / 'vectors.npy').write_text('x'), 'cannot be read'),
    (lambda f: (f / 'vectors.json').unlink(), 'vectors.json'),
    (lambda f: (f / 'vectors.json').write_text('[]'), 'vectors.json'),
    (lambda f: (f / 'vectors.json').write_text('{"model": {}}'), 'has no'),
    (lambda f: (f / 'paths.csv').unlink(), 'paths.csv'),
    (lambda f: (f / 'paths.csv').write_text('a,b,c\n1,2,3'), 'paths.csv'),
  ],
)
def test_changed_files_are_refused(model, photos, tmp_path, damage, message):
  write(model, photos, tmp_path / 'vectors.npy')
  damage(tmp_path)
  with pytest.raises(errors.IntegrityError, match=message):
    vectors.read(tmp_path / 'vectors.npy')


def test_a_file_that_does_not_exist(tmp_path):
  with pytest.raises(errors.DataError, match='no such file'):
    vectors.read(tmp_path / 'v.npy')
