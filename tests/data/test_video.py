"""Readers of tracklets: order, frames that are taken, damaged layouts."""

import json
import shutil

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data.benchmark import doctor, prepared
from fedreid_jax.data.datasets import registry, video
from fedreid_jax.data.decoder import Decoder


def read(root, spec):
  dataset, options = registry.parse(spec)
  return registry.read(dataset, root, **options)


def by_tracklet(records):
  found = {}
  for record in records:
    found.setdefault(record.tracklet[0], []).append(record)
  return found


@pytest.mark.parametrize('name', ['hitsz-vcm', 'buptcampus'])
def test_a_tracklet_is_of_one_person_camera_and_modality(minis, name):
  tracklets = by_tracklet(read(minis(name), name))
  assert [*tracklets] == sorted(tracklets)
  for frames in tracklets.values():
    kinds = {(r.person, r.camera, r.modality, r.split) for r in frames}
    assert len(kinds) == 1
    assert [r.tracklet[1] for r in frames] == [*range(len(frames))]
    numbers = [
      int(r.path[:-4].rpartition('_')[2].rpartition('/')[2]) for r in frames
    ]
    assert numbers == sorted(numbers)  # '11.jpg' follows '6.jpg'


def test_cameras_of_lists_and_folders_agree(minis):
  for record in read(minis('hitsz-vcm'), 'hitsz-vcm'):
    folder, person, side, camera, _ = record.path.split('/')
    assert (folder == 'Train') == (record.split == 'train')
    assert int(person) == record.person and int(camera[1:]) == record.camera
    assert (side == 'ir') == (record.modality == 1)
  for record in read(minis('buptcampus'), 'buptcampus'):
    _, person, side, camera, _ = record.path.split('/')
    assert int(person) == record.person
    assert video.BUPT_CAMERAS[record.camera - 1] == camera
    assert (side == 'IR') == (record.modality == 1)


def test_some_frames_are_evenly_spread(minis):
  every = by_tracklet(read(minis('hitsz-vcm'), 'hitsz-vcm'))
  some = by_tracklet(read(minis('hitsz-vcm'), 'hitsz-vcm:frames=8'))
  assert every.keys() == some.keys()
  for number, frames in every.items():
    wanted = [frames[k].path for k in (0, 1, 3, 4, 6, 7, 9, 10)]
    assert [r.path for r in some[number]] == wanted


def test_the_tree_without_folders_of_parts(mini_copy, minis):
  root = mini_copy('hitsz-vcm')
  for part in ('Train', 'Test'):
    for person in (root / part).iterdir():
      person.rename(root / person.name)
    (root / part).rmdir()
  for file in (root / 'info').iterdir():
    file.rename(root / file.name)
  (root / 'info').rmdir()
  flat = read(root, 'hitsz-vcm')
  given = read(minis('hitsz-vcm'), 'hitsz-vcm')
  assert [r.path for r in flat] == [r.path.partition('/')[2] for r in given]
  assert [r[1:] for r in flat] == [r[1:] for r in given]


def test_a_frame_of_two_tracklets_is_in_the_first(mini_copy):
  root = mini_copy('hitsz-vcm')
  tracks = root / 'info/track_train_info.txt'
  first, second, third, *rest = tracks.read_text().splitlines()
  assert first == '1 1 12 0001 1' and third.startswith('2 20 31')
  tracks.write_text('\n'.join([first, second, '2 12 31 0001 1', *rest]))
  records = read(root, 'hitsz-vcm')
  owners = [r.tracklet for r in records if r.path.endswith('0001/ir/D1/56.jpg')]
  assert owners == [(1, 11)]


def test_digests_without_tracklets_stay():
  record = registry.Record('a.jpg', 1, 2, 0, 'train')
  assert record.stored == ('a.jpg', 1, 2, 0, 'train', ())
  frame = record._replace(tracklet=(3, 0))
  assert frame.stored == (*record.stored, (3, 0))


@pytest.mark.parametrize('name', ['hitsz-vcm', 'buptcampus'])
def test_arrays_have_the_tracklets_of_the_records(minis, name):
  records = read(minis(name), name)
  own = prepared.open_prepared(minis(name), name, Decoder(16, 8))
  assert own.tracklets.tolist() == [r.tracklet[0] for r in records]
  assert own.names == tuple(r.path for r in records)
  other = prepared.open_prepared(minis('llcm'), 'llcm', Decoder(16, 8))
  assert other.tracklets is None


@pytest.mark.parametrize('name', ['hitsz-vcm', 'buptcampus'])
def test_miniatures_are_sound(minis, name):
  dataset, options = registry.parse(name)
  report = doctor.examine(dataset, minis(name), options, deep=True)
  assert not [f for f in report.findings if f.is_error]


def _edit(file, change):
  def damage(root):
    path = root / file
    path.write_text(change(path.read_text()))

  return damage


def _json(change):
  def edited(text):
    found = json.loads(text)
    change(found)
    return json.dumps(found)

  return _edit('data_paths.json', edited)


@pytest.mark.parametrize(
  ('name', 'damage', 'said'),
  [
    (
      'hitsz-vcm',
      lambda root: (root / 'info/query_IDX.txt').unlink(),
      'no file info/query_IDX.txt',
    ),
    (
      'hitsz-vcm',
      _edit('info/query_IDX.txt', lambda _: '1 999'),
      'tracklet 999 of 40',
    ),
    (
      'hitsz-vcm',
      _edit('info/query_IDX.txt', lambda _: '0 3'),
      'tracklet 0 of 40',
    ),
    (
      'hitsz-vcm',
      _edit('info/track_train_info.txt', lambda t: f'1 1 12 7\n{t}'),
      "line 1 is '1 1 12 7'",
    ),
    (
      'hitsz-vcm',
      _edit('info/track_train_info.txt', lambda t: f'3 1 12 0001 1\n{t}'),
      "line 1 is '3 1 12 0001 1'",
    ),
    (
      'hitsz-vcm',
      _edit('info/track_test_info.txt', lambda t: f'1 1 9999 0001 1\n{t}'),
      'line 1 has the frames 1 to 9999 of',
    ),
    (
      'hitsz-vcm',
      _edit('info/track_test_info.txt', lambda t: f'1 1 12 0001 7\n{t}'),
      "camera 7 in 'line 1'",
    ),
    (
      'hitsz-vcm',
      _edit('info/train_name.txt', lambda t: t.replace('M', 'X', 1)),
      "'0001X1D1T1F1.jpg' does not match",
    ),
    (
      'hitsz-vcm',
      lambda root: (root / 'Test/0006/ir/D6/1.jpg').unlink(),
      '1 listed files are missing: Test/0006/ir/D6/1.jpg',
    ),
    (
      'buptcampus',
      lambda root: (root / 'data_paths.json').unlink(),
      'no file data_paths.json',
    ),
    ('buptcampus', _edit('data_paths.json', lambda _: '['), 'no JSON'),
    (
      'buptcampus',
      _edit('data_paths.json', lambda _: '[]'),
      'a list in place of an object',
    ),
    (
      'buptcampus',
      _edit('train.txt', lambda t: f'1 RGB LS3\n{t}'),
      "line 1 is '1 RGB LS3'",
    ),
    (
      'buptcampus',
      _edit('query.txt', lambda t: f'1 RGB XY1 1\n{t}'),
      "line 1 is '1 RGB XY1 1'",
    ),
    (
      'buptcampus',
      _json(lambda found: found.pop('3')),
      "line 7 is '3 RGB/IR CQ1 1', or it has no frames",
    ),
    (
      'buptcampus',
      _json(lambda found: found['1']['IR']['LS3'].update({'1': ['../a.jpg']})),
      "'../a.jpg' is no frame",
    ),
    (
      'buptcampus',
      _json(lambda found: found['1']['IR']['LS3'].update({'1': [3]})),
      '3 is no frame',
    ),
    (
      'buptcampus',
      _json(lambda found: found['1']['IR']['LS3'].update({'1': 'a.jpg'})),
      "line 1 is '1 RGB/IR LS3 1', or it has no frames",
    ),
    (
      'buptcampus',
      lambda root: shutil.rmtree(root / 'DATA/2/IR'),
      '15 listed files are missing: DATA/2/IR/',
    ),
  ],
)
def test_a_damaged_layout_is_one_line(mini_copy, name, damage, said):
  root = mini_copy(name)
  damage(root)
  with pytest.raises(errors.DataError) as caught:
    read(root, name)
  line = caught.value.line()
  assert said in line and '\n' not in line
  assert registry.get(name).title in line


def test_frames_of_a_miniature_differ(pictures):
  frames = [*video._film(pictures.visible[0, 0], 12)]
  assert len({frame.tobytes() for frame in frames}) == 12
  np.testing.assert_array_equal(frames[0], pictures.visible[0, 0, 0])
