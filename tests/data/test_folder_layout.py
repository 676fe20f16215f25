"""Identities and cameras of the images of a folder."""

import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data.folder import folder_layout
from fedreid_jax.data.options import Data


def save(root, *names):
  for name in names:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (4, 8)).save(path)


def labels(root, *names):
  save(root, *names)
  found = folder_layout.labels(root, Data())
  return {name: tuple(label) for name, label in found.items()}


@pytest.mark.parametrize(
  'expected',
  [
    {'ann/x_c1.png': ('ann', '1'), 'bob/y_c2.png': ('bob', '2')},
    {'ann/x.png': ('ann', ''), 'bob/y.png': ('bob', '')},
    {'0002_c1s1_1.png': ('0002', '1'), '0007_c3s1_1.png': ('0007', '3')},
    {'cam_a/000_45.png': ('000', 'cam_a'), 'cam_b/000_9.png': ('000', 'cam_b')}
    | {'cam_a/001_0.png': ('001', 'cam_a')},
    {
      '0000/0000_000_01_0303morning_0015_0.png': ('0000', '01'),
      '0000/0000_001_12_0303noon_0015_1_ex.png': ('0000', '12'),
    },
    {'cam1/ann/a.png': ('ann', 'cam1'), 'cam2/ann/b.png': ('ann', 'cam2')},
    {'camA/ann/a.png': ('ann', 'camA'), 'camB/ann/b.png': ('ann', 'camB')},
    {'far/cam1/ann/a.png': ('ann', 'cam1'), 'far/cam2/b/1.png': ('b', 'cam2')},
    {
      'office/ann/x_c1.png': ('office/ann', '1'),
      'viper/cam_a/000_45.png': ('viper/000', 'cam_a'),
      'viper/cam_a/001_45.png': ('viper/001', 'cam_a'),
      'viper/cam_b/000_9.png': ('viper/000', 'cam_b'),
    },
    {'north/1/a.png': ('north/1', ''), 'south/1/a.png': ('south/1', '')},
  ],
  ids=[
    'persons',
    'no cameras',
    'Market-1501',
    'VIPeR',
    'MSMT17',
    'cameras',
    'letters of cameras',
    'cameras of a domain',
    'cameras of one domain of two',
    'domains',
  ],
)
def test_layouts(tmp_path, expected):
  assert labels(tmp_path, *expected) == expected


def test_images_of_nobody_have_no_label(tmp_path):
  nobody = [f'{person}_c1s1_1.png' for person in ('-1', '0000')]
  found = labels(tmp_path, *nobody, '0002_c1s1_1.png')
  assert [*found] == ['0002_c1s1_1.png']


def test_cameras_below_a_person_are_no_persons(tmp_path):
  with pytest.raises(errors.DataError, match='the folders of ann are cameras'):
    labels(tmp_path, 'ann/cam1/a.png', 'ann/cam2/b.png', 'bob/cam1/c.png')


def test_names_without_identities(tmp_path):
  with pytest.raises(errors.DataError):
    labels(tmp_path, 'IMG.png')


@pytest.mark.parametrize(
  'names',
  [
    ['p1/1.png', 'p2/1.png'],
    ['a/p1/1.png', 'b/p2/1.png'],
    ['0002_c1s1_1.png', '0003_c1s1_1.png'],
    ['a/0002_c1s1_1.png', 'a/0003_c1s1_1.png', 'b/0002_c1s1_1.png'],
    ['cam1/p1/1.png', 'cam2/p1/1.png'],
    ['cam_a/0002_1.png', 'cam_a/0003_1.png', 'cam_b/0002_1.png'],
    ['bounding_box_train/0002_c1s1_1.png'],
  ],
)
def test_thumbnails_in_every_folder_change_nothing(tmp_path, names):
  expected = labels(tmp_path, *names)
  folders = [tmp_path, *(path for path in tmp_path.rglob('*') if path.is_dir())]
  for folder in folders:
    save(folder, '@eaDir/1.png/SYNOPHOTO_THUMB.png')
  assert labels(tmp_path) == expected


def notes(root, *names):
  """What the domains are said to be of, by domain."""
  save(root, *names)
  found = folder_layout.find(root, folder_layout.Patterns(), False)
  return {name: found.read(name).published for name in found.domains}


SYSU = 'cam1/0001/0001.jpg', 'cam3/0001/0001.jpg'
VIPER = 'cam_a/000_45.bmp', 'cam_a/001_45.bmp', 'cam_b/000_9.bmp'


def test_a_domain_may_be_a_published_set(tmp_path):
  viper = [f'viper/{name}' for name in VIPER]
  found = notes(tmp_path, 'office/ann/1.png', *viper)
  assert found['office'] == ''
  assert 'of VIPeR: its two folders are cameras. To read' in found['viper']
  save(tmp_path, 'prid/multi_shot/cam_a/person_0001/0001.png')
  with pytest.raises(errors.DataError, match='those of PRID 2011') as caught:
    notes(tmp_path)
  assert caught.value.fix.endswith('set data.identity_pattern')


def test_a_note_says_what_was_read(tmp_path):
  assert notes(tmp_path / 'own', SYSU[0], 'cam2/0001/0002.jpg') == {'own': ''}
  assert 'infrared' in notes(tmp_path / 'sysu', *SYSU)['sysu']
  (said,) = notes(tmp_path / 'far', *(f'sysu/{name}' for name in SYSU)).values()
  assert 'infrared' in said
  (said,) = notes(tmp_path / 'n', '1_2_FRAME_25_RGB.bmp').values()
  assert 'cameras are not in the names. To' in said
  with pytest.raises(errors.DataError, match="would be an image of 'viper'"):
    notes(tmp_path / 'deep', *(f'a/viper/{name}' for name in VIPER))


def test_a_person_may_be_written_in_two_ways(tmp_path):
  two = 'café/1.png', 'cafe\u0301 /2.png', 'bob/1.png'
  (tmp_path / 'a').mkdir()
  found = labels(tmp_path, *(f'a/{name}' for name in two))
  assert [person for person, _ in found.values()].count('café') == 2
  save(tmp_path, 'a/Bob/2.png')
  with pytest.raises(errors.DataError, match='differ in case only'):
    labels(tmp_path)
