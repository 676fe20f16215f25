"""Every reader, on a miniature in the official layout."""

import collections
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import files
from fedreid_jax.data.datasets import cuhk03, infrared, photos, registry
from fedreid_jax.data.decoder import Decoder, decode

FULL = Decoder(32, 16)
# Counts for ten persons, 15 cameras and two shots.
IMAGES = {
  'market1501': dict(train=60, query=24, gallery=26),
  'market1501:junk=true': dict(train=60, query=24, gallery=28),
  'dukemtmc': dict(train=80, query=32, gallery=32),
  'msmt17': dict(train=150, query=75, gallery=75),
  'msmt17:val=val': dict(train=145, val=5, query=75, gallery=75),
  'msmt17:val=drop': dict(train=145, query=75, gallery=75),
  'cuhk03-np': dict(train=20, query=10, gallery=10),
  'cuhk03-np:boxes=labeled': dict(train=20, query=10, gallery=10),
  'cuhk03': {'train': 20, 'query+gallery': 20},
  'cuhk03:trial=19,query=last': dict(train=20, query=10, gallery=10),
  'cuhk01': dict(images=40),
  'cuhk01:split=half': dict(train=20, query=10, gallery=10),
  'cuhk02': dict(train=32, query=4, gallery=4),
  'cuhk02:split=public': dict(public=40),
  'prid2011': dict(images=10, distractor=3),
  # Train: 3 persons of both cameras and 2 of A; gallery: 2 tested, 3 others.
  'prid2011:split=half': dict(train=16, query=2, gallery=5),
  'viper': dict(images=20),
  'viper:split=half,trial=4': dict(train=10, query=5, gallery=5),
  'prid450s': dict(images=20),
  'prid450s:split=half,trial=4': dict(train=10, query=5, gallery=5),
  '3dpes': dict(images=38),
  'qmul-ilids': dict(images=40),
  'qmul-ilids:split=half': dict(train=20, query=10, gallery=10),
  'ilids-vid': dict(train=20, query=10, gallery=10),
  'ilids-vid:frames=images,trial=9': dict(train=10, query=5, gallery=5),
  'caviar4reid': dict(images=38),
  # Nine persons of both views; the last has one.
  'caviar4reid:split=views,trial=7': dict(train=2, query=18, gallery=18),
  'grid': dict(images=18, distractor=3),
  'grid:split=official,trial=3': dict(train=8, query=5, gallery=8),
  'grid:split=views': dict(query=9, gallery=12),
  'cuhk-sysu': dict(train=15, query=5, gallery=10),
  'sysu-mm01': dict(train=60, query=20, gallery=40),
  'sysu-mm01:val=val': dict(train=48, val=12, query=20, gallery=40),
  'sysu-mm01:val=drop': dict(train=48, query=20, gallery=40),
  'regdb': dict(train=100, query=50, gallery=50),
  'regdb:trial=10,direction=visible-infrared': dict(
    train=100, query=50, gallery=50
  ),
  'llcm': dict(train=170, query=80, gallery=90),
  'llcm:direction=visible-infrared': dict(train=170, query=90, gallery=80),
  # Five persons by three cameras in two modalities; 12 frames each.
  'hitsz-vcm': dict(train=360, query=180, gallery=180),
  # A person's first camera has a second tracklet of 7 frames.
  'hitsz-vcm:shortest=1,direction=visible-infrared': dict(
    train=430, query=215, gallery=215
  ),
  'hitsz-vcm:frames=6': dict(train=180, query=90, gallery=90),
  'buptcampus': dict(train=150, query=25, gallery=50),
  'buptcampus:frames=4,direction=visible-infrared': dict(
    train=120, query=20, gallery=40
  ),
  'cifar10': dict(train=50, test=10),
  'csv': dict(train=20, query=10, gallery=10),
}


@pytest.fixture
def read(minis):
  def one(spec):
    dataset, options = registry.parse(spec)
    root = minis(dataset.name)
    return root, dataset, registry.read(dataset, root, **options)

  return one


@pytest.mark.parametrize('spec', sorted(IMAGES))
def test_images_decode_and_test_persons_are_not_trained_on(read, spec):
  root, dataset, records = read(spec)
  counts = collections.Counter(record.split for record in records)
  assert counts == IMAGES[spec]
  in_order = sorted(records, key=lambda r: (r.tracklet, r.path, r.part))
  assert records == in_order
  assert len({r.name for r in records}) == len(records)
  image = registry.open_source(root, dataset, records)
  shapes = {decode(image(record), FULL).shape for record in records[::7]}
  assert shapes == {(32, 16, 3)}
  people = collections.defaultdict(set)
  for record in records:
    people[record.split].add(record.person)
  tested = people['query'] | people['gallery'] | people['query+gallery']
  assert not (people['train'] | people['val']) & tested
  assert people['query'] <= people['gallery'] or not people['gallery']


@pytest.mark.parametrize(
  'spec', ['sysu-mm01', 'regdb', 'llcm', 'hitsz-vcm', 'buptcampus']
)
def test_infrared_asks_and_visible_is_ranked(read, spec):
  modality = collections.defaultdict(set)
  for record in read(spec)[2]:
    modality[record.split].add(record.modality)
  assert modality == {'train': {0, 1}, 'query': {1}, 'gallery': {0}}


def test_pixels_are_those_that_were_written(read, pictures):
  """Person, camera and shot of files without loss, by their numbers."""
  cases = {
    'viper': lambda r: (r.person, r.camera - 1, 0),
    'prid450s': lambda r: (r.person - 1, r.camera - 1, 0),
    'cuhk01': lambda r: (r.person - 1, r.camera - 1, 1 - int(r.path[6]) % 2),
    'cuhk02': lambda r: (
      r.person // 10000 - 1 + 5 * (r.person % 10000 - 1),
      (r.camera - 1) % 2,
      int(r.path[-6]) - 1,
    ),
    'cuhk03': lambda r: (
      r.person // 1000 - 1 + 5 * (r.person % 1000 - 1),
      r.camera - 1,
      (r.part[3] - 1) % 5,
    ),
    'cuhk03-np': lambda r: (r.person - 1, r.camera - 1, (r.part[3] - 1) % 5),
    'prid2011': lambda r: (
      (r.person - 1) if r.person <= 200 else r.person - 1201,
      r.camera - 1,
      0,
    ),
  }
  for spec, place in cases.items():
    root, dataset, records = read(spec)
    image = registry.open_source(root, dataset, records)
    for record in records:
      pixels = decode(image(record), FULL)
      truth = pictures.visible[place(record)]
      np.testing.assert_array_equal(pixels, truth, f'{spec} {record}')


def test_boxes_cut_the_right_person_out_of_a_scene(read, pictures):
  root, dataset, records = read('cuhk-sysu')
  image = registry.open_source(root, dataset, records)
  for record in records:
    views = pictures.visible[record.person - 1, :3, 0].astype(int)
    errors_ = np.abs(views - decode(image(record), FULL)).mean((1, 2, 3))
    assert errors_.min() < 12, record  # error of JPEG


def test_cifar_classes(read, pictures):
  root, dataset, records = read('cifar10')
  assert [r.person for r in records if r.path == 'test_batch'] == [*range(10)]
  image = registry.open_source(root, dataset, records)
  small = decode(pictures.visible[3, 0, 0], Decoder(32, 32))
  record = next(r for r in records if r.person == 3)
  np.testing.assert_array_equal(image(record), small)


def test_trials_differ_and_are_the_same_every_time(read):
  for name in ('viper', 'prid2011', 'qmul-ilids'):
    one, two, again = (
      read(f'{name}:split=half,trial={trial}')[2] for trial in (1, 2, 1)
    )
    assert one != two and one == again


def test_new_protocol_may_come_as_folders_of_images(tmp_path, pictures):
  for folder, person in (
    ('bounding_box_train', 1),
    ('query', 2),
    ('bounding_box_test', 2),
  ):
    name = f'detected/{folder}/{person:04d}_c1_7.png'
    photos.save(tmp_path, name, pictures.visible[person, 0, 0])
  records = registry.read(registry.get('cuhk03-np'), tmp_path)
  assert [(r.person, r.camera, r.split) for r in records] == [
    (2, 1, 'gallery'),
    (1, 1, 'train'),
    (2, 1, 'query'),
  ]


@pytest.fixture(scope='module')
def extracted(minis, tmp_path_factory):
  """A release as torchreid extracts it, and its records by spec."""
  release, root = minis('cuhk03'), tmp_path_factory.mktemp('extracted')
  found = {}
  for protocol, name in (('classic', 'cuhk03'), ('new', 'cuhk03-np')):
    for boxes in cuhk03.BOXES:
      splits = []
      for trial in range(20 if protocol == 'classic' else 1):
        options = {'trial': trial} if protocol == 'classic' else {}
        records = registry.read(
          registry.get(name), release, boxes=boxes, **options
        )
        found[name, boxes, trial] = records
        split = {'train': [], 'query': [], 'gallery': [], 'num_train_pids': 5}
        labels = {}
        for record in records:
          _, pair, person, image = record.part
          file = f'{pair}_{person:03d}_{record.camera}_{image:02d}.png'
          path = root / f'images_{boxes}' / file
          if not path.exists():
            pixels = cuhk03.extract(release)(record)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
          for side in record.split.split('+'):
            # Training persons are counted from 0, as are those of the tests.
            label = labels.setdefault((side, record.person), len(labels))
            split[side].append([f'/home/them/x/{file}', label, record.camera])
        splits.append(split)
      (root / f'splits_{protocol}_{boxes}.json').write_text(json.dumps(splits))
  return root, found


def test_cuhk03_as_torchreid_extracts_it_is_the_release(minis, extracted):
  release, (root, found) = minis('cuhk03'), extracted
  for (name, boxes, trial), records in found.items():
    options = {'trial': trial} if name == 'cuhk03' else {}
    dataset = registry.get(name)
    theirs = registry.read(dataset, root, boxes=boxes, **options)
    assert len(theirs) == len(records)
    by_file = {}
    for record in theirs:
      pair, person, _, image = record.path[:-4].rpartition('/')[2].split('_')
      by_file[int(pair), int(person), int(image)] = record
    people = {}
    for record in records:
      other = by_file[record.part[1:]]
      assert other.camera == record.camera and other.split == record.split
      assert people.setdefault(other.person, record.person) == record.person
    assert len(people) == len(set(people.values()))
  dataset = registry.get('cuhk03')
  for folder in (release, root):
    records = registry.read(dataset, folder, query='last', trial=4)
    counts = collections.Counter(r.split for r in records)
    assert counts == {'train': 20, 'query': 10, 'gallery': 10}
  record = theirs[0]
  image = registry.open_source(root, dataset, theirs)(record)
  part = (1, *map(int, record.path[:-4].rpartition('/')[2].split('_')))
  same = record._replace(part=(*part[:3], part[4]))
  assert record.path.startswith('images_labeled/')
  np.testing.assert_array_equal(
    decode(image, FULL), decode(cuhk03.extract(release)(same), FULL)
  )


@pytest.mark.parametrize(
  ('damage', 'said'),
  [
    (lambda f: f.unlink(), 'no file splits_new_detected.json'),
    (lambda f: f.write_text('[]'), 'no list of splits: list index'),
    (lambda f: f.write_text('[{"train": [["a.png", 1]]}]'), 'no list of spl'),
    (lambda f: f.write_bytes(b'\xff'), 'no list of splits'),
    (
      lambda f: f.write_text(
        '[{"train": [["a.png", 1, 2]], "query": [], "gallery": []}]'
      ),
      "'a.png' does not match",
    ),
    (
      lambda f: f.write_text(
        '[{"train": [["9_009_1_01.png", 1, 2]], "query": [], "gallery": []}]'
      ),
      '1 listed files are missing: images_detected/9_009_1_01.png',
    ),
    (
      lambda f: f.write_text(
        '[{"train": [["1_001_1_01.png", 1, 2]],'
        ' "query": [["1_001_1_01.png", 1, 2]], "gallery": []}]'
      ),
      '1_001_1_01.png is in train+query',
    ),
  ],
)
def test_damaged_lists_of_cuhk03_are_named(extracted, tmp_path, damage, said):
  root = shutil.copytree(extracted[0], tmp_path / 'copy')
  damage(root / 'splits_new_detected.json')
  assert said in failure('cuhk03-np', root)


def test_msmt17_has_two_digits_of_cameras(read):
  for split in ('train', 'query', 'gallery'):
    cameras = {r.camera for r in read('msmt17')[2] if r.split == split}
    assert cameras == {*range(1, 16)}


def test_msmt17_version_2_has_other_folders(mini_copy):
  root = mini_copy('msmt17')
  (root / 'train').rename(root / 'mask_train_v2')
  (root / 'test').rename(root / 'mask_test_v2')
  records = registry.read(registry.get('msmt17'), root)
  assert {r.path.partition('/')[0] for r in records} == {
    'mask_train_v2',
    'mask_test_v2',
  }


def test_sysu_permutations(minis):
  table = infrared.sysu_permutations(minis('sysu-mm01'))
  assert len(table) == 60
  assert table[3, 6].shape == (10, 2)
  assert sorted(table[3, 6][0]) == [1, 2]


def failure(name, root, **options):
  with pytest.raises(errors.DataError) as caught:
    registry.read(registry.get(name), root, **options)
  return caught.value.line()


def test_missing_files_are_named(mini_copy, tmp_path):
  root = mini_copy('market1501')
  (root / 'query').rename(root / 'probe')
  assert failure('market1501', root) == (
    f'error[3]: Market-1501: no folder query — {root} — '
    'see docs/datasets.md for the tree'
  )
  (root / 'query').mkdir()
  assert f'no images — {root}/query' in failure('market1501', root)
  assert 'neither train and test nor' in failure('msmt17', root)
  for name in ('cuhk03', 'cuhk03-np'):
    assert 'accepted are cuhk03_release/cuhk-03.mat, images_' in failure(
      name, root
    )
  assert 'no file exp/train_id.txt' in failure('sysu-mm01', root)
  assert 'no file manifest.csv' in failure('csv', root)
  assert 'no file data_batch_1' in failure('cifar10', root)


def test_listed_files_must_be_there(mini_copy):
  root = mini_copy('msmt17')
  name = '0000/0000_000_01_0303morning_0015_0.jpg'
  (root / 'train' / name).unlink()
  assert f'1 listed files are missing: train/{name}' in failure('msmt17', root)


def test_names_that_do_not_match(mini_copy):
  root = mini_copy('market1501')
  names = root / 'bounding_box_train'
  (names / 'holiday.jpg').touch()
  assert "'bounding_box_train/holiday.jpg' does not match" in (
    failure('market1501', root)
  )
  (names / 'holiday.jpg').rename(names / '0001_c9s1_000001_00.jpg')
  assert 'camera 9 in' in failure('market1501', root)
  assert 'cameras are 1 to 6' in failure('market1501', root)


def test_a_person_of_two_lists(mini_copy):
  root = mini_copy('sysu-mm01')
  (root / 'exp/test_id.txt').write_text('1,6,7')
  assert 'person 1 is in train and test' in failure('sysu-mm01', root)
  (root / 'exp/test_id.txt').write_text('six')
  assert 'invalid literal' in failure('sysu-mm01', root)


def test_mat_files_that_are_none(mini_copy):
  root = mini_copy('grid')
  file = root / 'features_and_partitions.mat'
  file.write_bytes(b'junk' * 100)
  assert 'cannot be read' in failure('grid', root, split='official')
  file.unlink()
  assert 'no file features_and_part' in failure('grid', root, split='official')
  root = mini_copy('cuhk03')
  (root / 'cuhk03_release/cuhk-03.mat').write_bytes(b'MATLAB 5.0')
  assert 'no HDF5 file' in failure('cuhk03', root)


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('a.png,1,1,visible', 'wrong number of fields'),
    ('a.png,1,1,thermal,train', "modality 'thermal'"),
    ('a.png,1,1,visible,dev', "split 'dev'"),
    ('../a.png,1,1,visible,train', "path '../a.png'"),
    ('none.png,1,1,visible,train', '1 listed files are missing: none.png'),
  ],
)
def test_manifest_lines(tmp_path, line, message):
  header = 'path,identity,camera,modality,split\n'
  (tmp_path / 'manifest.csv').write_text(header + line + '\n')
  assert message in failure('csv', tmp_path)
  (tmp_path / 'manifest.csv').write_text(header.replace('camera', 'place'))
  assert "no column 'camera'" in failure('csv', tmp_path)


@pytest.mark.parametrize(
  ('words', 'numbers'),
  [
    (('7', '3'), (7, 3)),
    (('bob', 'ann'), (2, 1)),
  ],
)
def test_manifest_numbers_are_kept_and_words_counted(tmp_path, words, numbers):
  lines = ['path,identity,camera,modality,split']
  for place, word in enumerate(words):
    (tmp_path / f'{place}.png').touch()
    lines.append(f'{place}.png,{word},{word},visible,train')
  (tmp_path / 'manifest.csv').write_text('\n'.join(lines))
  records = registry.read(registry.get('csv'), tmp_path)
  assert tuple(r.person for r in records) == numbers
  assert tuple(r.camera for r in records) == numbers


@pytest.mark.parametrize('name', sorted({s.partition(':')[0] for s in IMAGES}))
def test_names_tell_the_data_set(minis, name):
  found = registry.recognise(files.some_images(minis(name), 200))
  # A folder of photographs reads the names of the others as they are.
  read_as_they_are = ('market1501', 'dukemtmc', 'cuhk03-np', 'csv', 'cifar10')
  if name in (*read_as_they_are, 'cuhk03'):  # whose miniature has no files
    assert found is None
  else:
    assert found and found.name == name


def test_own_names_are_of_no_data_set():
  for path in ('a/ann/0001001.jpg', 'ann/2024_01_02_11.png', 'cam1/ann/1.jpg'):
    assert registry.recognise([path]) is None
  assert registry.recognise(['images_labeled/1_001_2_09.png'])
  assert registry.recognise([]) is None
