"""Persons of photographs as files, with their boxes."""

import csv

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy import crops, vectors
from fedreid_jax.apps.deploy.persons import Box


class MadeUp:
  """A detector with a box of the left half, and one of all if it is red."""

  def find(self, image):
    red, green, _ = image.getpixel((0, 0))
    if green > 128:
      return []
    found = [Box(0, 0, image.width // 2, image.height, 0.9)]
    if red > 128:
      found.append(Box(0, 0, image.width, image.height, 0.75))
    return found


@pytest.fixture
def photos(tmp_path):
  root = tmp_path / 'photos'
  (root / 'street').mkdir(parents=True)
  Image.new('RGB', (40, 20), (250, 0, 0)).save(root / 'street/a, b.png')
  Image.new('RGB', (8, 10), (0, 0, 9)).save(root / 'c.png')
  Image.new('RGB', (8, 10), (0, 250, 0)).save(root / 'empty.png')
  return root


def pixels(path):
  with Image.open(path) as image:
    return np.asarray(image)


def write(root, out, skip=False, **options):
  folder = vectors.folder_of(root, '--images', skip)
  return crops.write(MadeUp(), folder, out, skip=skip, **options)


NAMES = ['c.png-0.png', 'street/a, b.png-0.png', 'street/a, b.png-1.png']


def test_crops_and_their_boxes(photos, tmp_path):
  done, out = [], tmp_path / 'crops'
  found = write(photos, out, advance=done.append)
  assert found.folder == vectors.Folder(out, NAMES, [])
  assert found.empty == ['empty.png'] and sum(done) == 3
  images = [pixels(out / name) for name in NAMES]
  assert [x.shape[:2] for x in images] == [(10, 4), (20, 20), (20, 40)]
  assert (images[1] == [250, 0, 0]).all()
  with (out / 'boxes.csv').open(newline='') as file:
    lines = [*csv.reader(file)]
  assert lines == [
    ['crop', 'source', 'left', 'top', 'right', 'bottom', 'score'],
    ['c.png-0.png', 'c.png', '0', '0', '4', '10', '0.9000'],
    [NAMES[1], 'street/a, b.png', '0', '0', '20', '20', '0.9000'],
    [NAMES[2], 'street/a, b.png', '0', '0', '40', '20', '0.7500'],
  ]
  assert crops.read(out)[NAMES[2]] == (
    'street/a, b.png at 0,0,40,20, score 0.7500'
  )
  # The folder of crops is a folder of images as any other.
  assert vectors.folder_of(out, '--images', False).names == NAMES


def test_boxes_are_those_of_the_turned_photograph(tmp_path):
  (tmp_path / 'photos').mkdir()
  image = Image.new('RGB', (40, 20), (0, 0, 9))
  exif = Image.Exif()
  exif[0x0112] = 6  # a quarter turn
  image.save(tmp_path / 'photos/a.jpg', exif=exif)
  found = write(tmp_path / 'photos', tmp_path / 'crops')
  (name,) = found.folder.names
  assert pixels(tmp_path / 'crops' / name).shape == (40, 10, 3)


def test_photographs_that_cannot_be_read(photos, tmp_path):
  (photos / 'torn.png').write_bytes(b'\x89PNG')
  out = tmp_path / 'crops'
  with pytest.raises(errors.DataError, match='torn.png'):
    write(photos, out)
  assert not out.exists() and not [*tmp_path.glob('*.partial')]
  found = write(photos, out, skip=True)
  assert [name for name, _ in found.folder.left_out] == ['torn.png']
  assert found.folder.names == NAMES
  with pytest.raises(errors.DataError, match='max_pixels=50'):
    write(photos, tmp_path / 'other', max_pixels=50)


def test_no_person_at_all(photos, tmp_path):
  (photos / 'c.png').unlink()
  (photos / 'street/a, b.png').unlink()
  with pytest.raises(errors.DataError, match='no person in 1 photograph'):
    write(photos, tmp_path / 'crops')
  assert not (tmp_path / 'crops').exists()


def test_a_folder_with_files_is_not_replaced(photos, tmp_path):
  out = tmp_path / 'crops'
  crops.check_out(out)
  out.mkdir()
  crops.check_out(out)
  assert len(write(photos, out).folder.names) == 3
  with pytest.raises(errors.ConfigError, match='not empty'):
    crops.check_out(out)
  with pytest.raises(errors.ConfigError, match='not empty'):
    crops.check_out(photos / 'c.png')
  with pytest.raises(errors.ResourceError):
    crops.check_out(tmp_path / 'none' / 'crops')


@pytest.mark.parametrize('text', [None, '', 'index,path\n', 'crop\n\xff'])
def test_a_folder_without_boxes(tmp_path, text):
  if text is not None:
    (tmp_path / 'boxes.csv').write_text(text, encoding='latin-1')
  assert crops.read(tmp_path) == {}


def test_frames_of_videos_have_times(photos, tmp_path):
  """Two videos with spaces in their names, between photographs."""
  pytest.importorskip('cv2', reason="pip install '.[video]'")
  import videos

  for name in 'ad':
    videos.write(photos / f'{name} b.avi', 4)
  folder = vectors.folder_of(photos, '--images', False, ('.avi',))
  out = tmp_path / 'crops'
  found = crops.write(MadeUp(), folder, out, every=3)
  frames = [f'{name} b.avi/00000{k}-0.png' for name in 'ad' for k in (0, 3)]
  assert found.folder.names == sorted([*frames, *NAMES])
  assert found.searched == crops.count(folder, 3) == 7
  assert found.times == dict(zip(frames, [0.0, 0.3] * 2, strict=True))
  assert [pixels(out / x).shape for x in frames] == [(48, 32, 3)] * 4
  origins = crops.read(out)
  assert origins[frames[1]] == 'a b.avi at 0:00:00.3, 0,0,32,48, score 0.9000'
  assert origins[NAMES[0]] == 'c.png at 0,0,4,10, score 0.9000'


def test_videos_that_cannot_be_read(tmp_path):
  pytest.importorskip('cv2', reason="pip install '.[video]'")
  import videos

  data = videos.write(tmp_path / 'a.avi', 25).read_bytes()
  (tmp_path / 'a.avi').write_bytes(data[: data.index(b'00dc', len(data) // 2)])
  (tmp_path / 'b.avi').touch()
  folder = vectors.Folder(tmp_path, ['a.avi', 'b.avi'], [])
  with pytest.raises(errors.DataError, match='empty file') as info:
    crops.write(MadeUp(), folder, tmp_path / 'crops')
  assert info.value.line().endswith(f'{tmp_path / "b.avi"} — give a video')
  assert not (tmp_path / 'crops').exists()
  # The frames before the end of one that is cut off are used, and it is named.
  found = crops.write(MadeUp(), folder, tmp_path / 'crops', skip=True)
  assert found.searched == len(found.folder.names) > 0
  (first, cut), second = found.folder.left_out
  assert first == 'a.avi' and f'frame {found.searched} of 25' in cut
  assert second == ('b.avi', 'empty file')
