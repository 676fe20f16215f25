import pytest

from fedreid_jax import errors
from fedreid_jax.data import names


def cameras(paths, pattern='auto', persons=None, needed=False):
  persons = persons or [path.partition('/')[0] for path in paths]
  return names.cameras(pattern, paths, persons, 'here', needed)


@pytest.mark.parametrize(
  'name, camera',
  [
    ('7/0002_c1s1_000451_03.jpg', '1'),
    ('0002_c12s1_000451_03.jpg', '12'),
    ('7/0001_c2_f0046182.jpg', '2'),
    ('7/x_c03.png', '03'),
    ('7/x-C4.png', '4'),
    ('7/x cam 5.png', '5'),
    ('7/Camera_6/x.png', '6'),
    ('c1/x_c7.jpg', '7'),  # c1 is a person
    ('7/駅_cam8 é.jpg', '8'),
  ],
)
def test_cameras_in_names(name, camera):
  assert cameras([name]) == [camera]


@pytest.mark.parametrize(
  'paths',
  [
    ['c1/x.jpg', 'c2/y.jpg'],
    ['7/abc1.jpg'],
    ['7/IMG_0001.jpg', '7/IMG_0002.jpg', '8/IMG_0001.jpg'],  # count images
    ['7/x_c1.jpg', '7/y.jpg'],
    ['7/x_01.jpg', '7/y_01.jpg', '7/z.jpg'],
    ['1_1_0.jpg', '1_2_0.jpg', '2_1_0.jpg'],  # one number for all, Celeb-reID
  ],
)
def test_names_without_cameras(paths):
  assert cameras(paths) is None


def test_numbers_at_the_end_are_cameras_if_a_person_has_one_twice():
  assert cameras(['7/a_01.jpg', '7/b_01.jpg', '7/a_02.jpg']) == [
    *('01', '01', '02')
  ]
  single = ['7/a_01.jpg', '7/a_02.jpg', '8/a_01.jpg']
  assert cameras(single, needed=True) == ['01', '02', '01']


@pytest.mark.parametrize(
  'paths, guess',
  [
    (
      ['7/back_0.jpg', '7/front_0.jpg', '7/back_1.jpg'],
      'camera 0 from the last number of 7/back_0.jpg',
    ),
    (['7/back_c0.jpg', '7/front_c0.jpg', '7/back_c1.jpg'], ''),
    (['7/x.jpg', '7/y.jpg'], ''),
  ],
)
def test_a_guess_has_an_example(paths, guess):
  assert names.guess('auto', paths, cameras(paths)) == guess
  assert names.guess(r'_(\d)', paths, ['0'] * len(paths)) == ''


def test_a_pattern_fits_all_names_or_none():
  paths = ['7/x_c1.jpg', '7/y.jpg']
  assert cameras(paths, '') is None
  assert cameras(paths, 'door(.)') is None
  assert cameras(paths[:1], '_c(.)') == ['1']
  with pytest.raises(errors.DataError, match=r"'7/y.jpg' does not match"):
    cameras(paths, '_c(.)')


@pytest.mark.parametrize(
  'name, person',
  [
    ('0002_c1s1_1.jpg', '0002'),
    ('-1_c1_1.jpg', '-1'),
    ('folder/12_a.jpg', '12'),
    ('0002.jpg', None),
    ('anna_1.jpg', None),
    ('-2_c1.jpg', None),
  ],
)
def test_persons_at_the_start_of_names(name, person):
  assert names.person(name) == person


def test_folders_that_are_cameras():
  assert names.are_cameras(['cam1', 'Camera_2', 'CAM 03'])
  assert names.are_cameras(['cam_a', 'cam_b']) and not names.are_cameras(
    ['cama']
  )
  assert not names.are_cameras(['cam1', 'entrance'])
  assert not names.are_cameras(['c1', 'c2'])  # may be clients
