import shutil

import pytest

from fedreid_jax import errors
from fedreid_jax.data.benchmark import doctor
from fedreid_jax.data.datasets import registry


def examine(spec, root, deep=False, **limits):
  dataset, options = registry.parse(spec)
  return doctor.examine(dataset, root, options, deep, **limits)


def other(report):
  """Findings that are not about counts, which a miniature never has right."""
  return [
    (f.is_error, f.what) for f in report.findings if 'published' not in f.what
  ]


# Intended findings of the miniature: persons of one camera.
KNOWN = {
  'prid2011:split=half': 'training persons seen by one camera only',
}


@pytest.mark.parametrize(
  'spec', [*sorted(registry.DATASETS), 'prid2011:split=half']
)
def test_miniatures_are_sound(minis, spec):
  report = examine(spec, minis(spec.partition(':')[0]), deep=True)
  assert not any(finding.is_error for finding in report.findings)
  known = KNOWN.get(spec)
  assert all(known and known in what for _, what in other(report)), report
  doctor.check(report, 'root')


def test_counts_stand_beside_the_published_ones(minis):
  report = examine('market1501', minis('market1501'))
  row = report.rows[0]
  assert row.split == 'train'
  assert row.found == (60, 5, 6) and row.expected == (12936, 751, 6)
  assert (False, 'train has 60 images, published are 12,936') in [
    tuple(f) for f in report.findings
  ]


def test_unreadable_files_are_errors(mini_copy):
  root = mini_copy('market1501')
  whole = sorted((root / 'query').iterdir())
  whole[0].write_bytes(b'')
  whole[1].write_bytes(b'<html></html>')
  whole[2].write_bytes(whole[2].read_bytes()[:-10])
  report = examine('market1501', root)
  ((is_error, what),) = other(report)
  assert is_error and what.startswith('unreadable files, 3: query/0006_c1s1')
  assert 'empty file' in what and 'truncated' in what
  with pytest.raises(errors.DataError) as caught:
    doctor.check(report, root)
  assert caught.value.exit_code == 3
  assert '1 error, first: unreadable files, 3' in caught.value.line()


def test_scenes_are_files_too(mini_copy):
  root = mini_copy('cuhk-sysu')
  scene = root / 'Image/SSM/s1.jpg'
  scene.write_bytes(scene.read_bytes()[:-10])
  ((is_error, what),) = other(examine('cuhk-sysu', root))
  assert is_error
  assert what.startswith('unreadable files, 1: Image/SSM/s1.jpg (')


def test_the_limit_of_pixels_is_that_of_the_run(minis):
  report = examine('viper', minis('viper'), deep=True, max_pixels=32 * 16 - 1)
  ((is_error, what),) = other(report)
  assert is_error and what.startswith('undecodable images, 20: cam_a/000_0')


def test_files_of_another_format_are_read_and_told(mini_copy):
  root = mini_copy('viper')
  from PIL import Image

  path = root / 'cam_a/000_0.bmp'
  with Image.open(path) as image:
    image.save(path, 'PNG')
  ((is_error, what),) = other(examine('viper', root))
  assert not is_error
  assert what.endswith('differs from their suffix, 1: cam_a/000_0.bmp')


def test_damage_inside_a_file_takes_a_deep_look(mini_copy):
  root = mini_copy('cuhk01')
  path = root / '0001001.png'
  data = bytearray(path.read_bytes())
  data[60:90] = bytes(30)
  path.write_bytes(bytes(data))
  assert other(examine('cuhk01', root)) == []
  ((is_error, what),) = other(examine('cuhk01', root, deep=True))
  assert is_error and what.startswith('undecodable images, 1: 0001001.png')


def test_persons_in_train_and_test(mini_copy):
  root = mini_copy('market1501')
  (root / 'query/0006_c1s1_005000_01.jpg').rename(
    root / 'bounding_box_train/0006_c1s1_005000_01.jpg'
  )
  report = examine('market1501', root)
  assert (True, 'persons in train and test, 1: 6') in other(report)


def test_person_0_is_a_person_where_it_is_no_distractor(
  manifest_with_person_0, mini_copy
):
  report = examine('csv', manifest_with_person_0)
  assert (True, 'persons in train and test, 1: 0') in other(report)
  root = mini_copy('market1501')
  name = '0000_c2s1_009000_01.jpg'
  (root / 'bounding_box_test' / name).rename(root / 'bounding_box_train' / name)
  report = examine('market1501', root)
  assert not any(finding.is_error for finding in report.findings)


def test_same_file_in_train_and_test_takes_a_deep_look(mini_copy):
  root = mini_copy('market1501')
  shutil.copy(
    root / 'query/0006_c1s1_005000_01.jpg',
    root / 'bounding_box_train/0002_c1s1_000009_01.jpg',
  )
  assert other(examine('market1501', root)) == []
  ((is_error, what),) = other(examine('market1501', root, deep=True))
  assert is_error
  assert what == (
    'files of train that are in query too, '
    '1: bounding_box_train/0002_c1s1_000009_01.jpg'
  )


def test_queries_without_an_answer(mini_copy):
  root = mini_copy('market1501')
  gallery = root / 'bounding_box_test'
  for path in gallery.glob('0006_c[2-6]*'):
    path.unlink()  # only the query's own camera is left, for one query
  ((is_error, what),) = other(examine('market1501', root))
  assert not is_error
  assert what.startswith('queries without a match, 1: query/0006_c1s1')
  for path in gallery.glob('000[6-9]_*'):
    path.unlink()
  ((is_error, what),) = other(examine('market1501', root))
  assert is_error and what.startswith('queries without a match, 24')


def test_cameras_of_one_place_give_no_answer(mini_copy):
  root = mini_copy('sysu-mm01')
  for camera in (1, 4, 5):
    for person in root.glob(f'cam{camera}/00*'):
      if int(person.name) >= 6:
        shutil.rmtree(person)
  ((is_error, what),) = other(examine('sysu-mm01', root))
  assert not is_error  # camera 6 still has answers in camera 2
  assert what.startswith('queries without a match, 10: cam3/0006/')


def test_training_persons_of_one_camera(mini_copy):
  root = mini_copy('market1501')
  for path in (root / 'bounding_box_train').glob('0001_c[2-6]*'):
    path.unlink()
  ((is_error, what),) = other(examine('market1501', root))
  assert not is_error
  assert what == 'training persons seen by one camera only, 1: 1'


def test_person_of_one_image_is_never_tested(mini_copy):
  root = mini_copy('viper')
  (root / 'cam_b/004_90.bmp').unlink()
  ((is_error, what),) = other(examine('viper', root))
  assert not is_error
  assert what == 'persons with one image, never tested, 1: 4'


def test_empty_split(mini_copy):
  root = mini_copy('sysu-mm01')
  (root / 'exp/val_id.txt').write_text('77')
  report = examine('sysu-mm01:val=val', root)
  assert (True, 'val is empty') in other(report)
  assert report.findings[0].is_error  # errors come first
