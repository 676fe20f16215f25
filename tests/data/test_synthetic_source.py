import functools
import math
import os

import jax
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data.options import Data
from fedreid_jax.data.synthetic import (
  photographs,
  shifts,
  synthetic_source,
  worlds,
)


def plaza(**fields):
  """Returns the training images of a domain of four cameras, and the source."""
  given = {
    'sources': ('plaza:infrared=1,cameras=3',),
    'targets': ('mall',),
    'identities': 40,
    'shots': 2,
    'height': 16,
    'width': 8,
  }
  source = synthetic_source.load(Data(**given | fields))
  return source.domains[0], source


def seen(images):
  """Persons of each camera."""
  return [{*images.identities[images.cameras == camera]} for camera in range(4)]


def test_every_second_camera_misses_persons():
  images, _ = plaza(presence=0.5)
  everyone = set(range(40))
  persons = seen(images)
  assert persons[0] == persons[2] == everyone
  for camera in (1, 3):
    assert 10 <= len(persons[camera]) <= 30
  assert persons[1] != persons[3]
  counts = np.unique(
    images.identities * 4 + images.cameras, return_counts=True
  )[1]
  assert (counts == 2).all()


def test_who_is_seen_does_not_depend_on_how_many_there_are():
  few, many = (seen(plaza(presence=0.5, identities=n)[0]) for n in (20, 40))
  assert few == [{p for p in own if p < 20} for own in many]


def test_images_of_those_who_are_seen_are_as_before():
  whole, before = plaza()
  part, after = plaza(presence=0.3)
  keys = [
    list(zip(x.identities, x.cameras, strict=True)) for x in (whole, part)
  ]
  rows = [keys[0].index(key) for key in dict.fromkeys(keys[1])]
  first = [keys[1].index(key) for key in dict.fromkeys(keys[1])]
  np.testing.assert_array_equal(whole.images()[rows], part.images()[first])
  assert before.digest != after.digest
  assert not before.digest.endswith('1.0')


@pytest.mark.parametrize('presence', [0.5, 1.0])
def test_targets_have_every_person(presence):
  _, source = plaza(presence=presence)
  assert len({*source.targets[0].images.identities}) == 60


SIZES = (0, 2, 1, 1)
OPTIONS = {'height': 16, 'width': 8}


@pytest.fixture
def nothing_kept(monkeypatch, tmp_path):
  """An empty cache, in memory and on disk."""
  monkeypatch.setattr(synthetic_source, 'folder', lambda: tmp_path / 'images')
  synthetic_source._kept.cache_clear()
  yield
  synthetic_source._kept.cache_clear()


@pytest.fixture
def rendered(monkeypatch, nothing_kept):
  """Arguments of the calls that rendered, which drew noise of their own."""
  calls = []

  def generate(*sizes, height, width, **options):
    calls.append((sizes, options))
    given = repr((sizes, height, width, sorted(options.items())))
    rng = np.random.default_rng([*given.encode()])
    shape = math.prod(sizes[1:]), height, width, 3
    images = rng.integers(0, 256, shape, dtype=np.uint8)
    zeros = np.zeros(len(images), np.int32)
    return photographs.Sample(images, zeros, zeros)

  monkeypatch.setattr(photographs, 'generate', generate)
  return calls


@pytest.mark.usefixtures('nothing_kept')
def test_kept_images_are_those_of_the_renderer():
  expected = photographs.generate(*SIZES, **OPTIONS).images
  np.testing.assert_array_equal(
    synthetic_source.kept_images(*SIZES, **OPTIONS), expected
  )


def test_images_are_rendered_once(rendered):
  one = synthetic_source.kept_images(*SIZES, **OPTIONS)
  assert synthetic_source.kept_images(*SIZES, **OPTIONS) is one
  assert len(rendered) == 1
  with pytest.raises(ValueError, match='read-only'):
    one[0] = 0


def again(options=OPTIONS):
  """The images of a process that has none in memory."""
  synthetic_source._kept.cache_clear()
  return synthetic_source.kept_images(*SIZES, **options)


def test_images_are_found_on_disk(rendered, tmp_path):
  one, two = again(), again()
  np.testing.assert_array_equal(one, two)
  assert two is not one and not two.flags.writeable and len(rendered) == 1
  assert len([*(tmp_path / 'images').iterdir()]) == 1


@pytest.mark.parametrize('place', [0, 31, 32, 100, -1])
def test_a_damaged_file_is_rendered_again(rendered, tmp_path, place):
  one = again()
  (path,) = (tmp_path / 'images').iterdir()
  content = bytearray(path.read_bytes())
  content[place] ^= 1
  for damaged in (content, content[:place], b''):
    path.write_bytes(damaged)
    calls = len(rendered)
    for _ in range(2):
      np.testing.assert_array_equal(one, again())
      assert len(rendered) == calls + 1


def test_a_file_of_other_images_is_not_used(rendered, tmp_path):
  again()
  (one,) = (tmp_path / 'images').iterdir()
  expected = again(OPTIONS | {'seed': 1})
  (two,) = {*(tmp_path / 'images').iterdir()} - {one}
  two.write_bytes(one.read_bytes())
  np.testing.assert_array_equal(again(OPTIONS | {'seed': 1}), expected)
  assert len(rendered) == 3


def test_the_oldest_files_are_removed(rendered, tmp_path, monkeypatch):
  monkeypatch.setattr(synthetic_source, 'MAX_DISK_BYTES', 2 * 800)
  for seed in range(3):
    again(OPTIONS | {'seed': seed})
    for path in (tmp_path / 'images').iterdir():
      time = path.stat().st_mtime - 10
      os.utime(path, (time, time))
  assert len([*(tmp_path / 'images').iterdir()]) == 2
  again(OPTIONS | {'seed': 2})
  assert len(rendered) == 3
  again(OPTIONS | {'seed': 0})
  assert len(rendered) == 4


@pytest.mark.parametrize('fact', ['sources', 'flags', 'setting', 'processor'])
def test_other_programs_have_other_files(rendered, monkeypatch, fact):
  again()
  if fact == 'sources':
    monkeypatch.setattr(synthetic_source, '_SOURCES', ['another'])
  elif fact == 'flags':
    monkeypatch.setenv('XLA_FLAGS', '--xla_another')
  elif fact == 'processor':
    monkeypatch.setattr(synthetic_source, '_processor', lambda: ['another'])
  with jax.default_matmul_precision('high' if fact == 'setting' else None):
    again()
  assert len(rendered) == 2


def test_a_cache_that_cannot_be_written_is_no_error(rendered, tmp_path):
  (tmp_path / 'images').write_text('')
  assert len(synthetic_source.kept_images(*SIZES, **OPTIONS)) == 2
  assert len(rendered) == 1


@pytest.mark.parametrize(
  'other',
  [
    {'seed': 1},
    {'modality': 'infrared'},
    {'first_identity': 1},
    {'camera_spread': 2.0},
    {'height': 24},
  ],
)
def test_other_images_are_rendered(rendered, other):
  one = synthetic_source.kept_images(*SIZES, **OPTIONS)
  two = synthetic_source.kept_images(*SIZES, **(OPTIONS | other))
  assert len(rendered) == 2
  assert one.shape != two.shape or (one != two).any()


@pytest.mark.parametrize('sizes', [(1, 2, 1, 1), (0, 1, 2, 1), (0, 1, 1, 2)])
def test_other_counts_are_rendered(rendered, sizes):
  one = synthetic_source.kept_images(*SIZES, **OPTIONS)
  two = synthetic_source.kept_images(*sizes, **OPTIONS)
  assert len(rendered) == 2 and (one != two).any()


def test_many_images_are_not_kept(rendered, monkeypatch):
  monkeypatch.setattr(synthetic_source, 'MAX_BYTES', 2 * 16 * 8 * 3 - 1)
  for _ in range(2):
    synthetic_source.kept_images(*SIZES, **OPTIONS)
  assert len(rendered) == 2
  assert not synthetic_source.folder().exists()


def targets(*specs):
  config = Data(
    sources=('plaza',),
    targets=specs,
    target_identities=3,
    target_shots=2,
    **LARGER,
  )
  return synthetic_source.load(config).targets


# A coarser sensor changes no image of 16 times 8 pixels.
LARGER = {'height': 64, 'width': 32}


@pytest.mark.slow
def test_a_shifted_domain_has_the_same_persons_in_other_images():
  specs = [f'mall:shift={kind}' for kind in shifts.SHIFTS]
  plain, *shifted = targets('mall', *specs)
  assert plain.images.name == 'mall'
  for kind, target in zip(shifts.SHIFTS, shifted, strict=True):
    images = target.images
    assert images.name == target.name == f'mall+{kind}'
    np.testing.assert_array_equal(images.identities, plain.images.identities)
    np.testing.assert_array_equal(images.cameras, plain.images.cameras)
  # Every shift is a program of its own. These two have all parts of it.
  found = [
    plain.images.images(),
    *(
      target.images.images()
      for target in shifted
      if target.name in ('mall+clothing', 'mall+all')
    ),
  ]
  assert len(found) == 3
  assert_differ(found)


def assert_differ(found):
  found = [images.astype(int) for images in found]
  for k, one in enumerate(found):
    for other in found[:k]:
      assert np.abs(one - other).mean() > 2


@pytest.mark.slow
def test_what_a_shift_changes():
  """Noise: neighbouring pixels. Resolution: edges. Colour: the mean colour."""
  world = worlds.find('synthetic')
  each = np.arange(photographs._BATCH, dtype=np.int32)
  ids = np.full_like(each, 3), 60 + each // 8, each // 2 % 4, each % 2
  which = np.uint32(0), np.int32(0), np.float32(0)
  person, camera, shot, infrared = photographs._sample_batch(
    *which, *ids, world=world, shift=''
  )

  @functools.partial(jax.jit, static_argnums=0)
  def shifted(kind, camera, shot):
    return jax.vmap(functools.partial(shifts.scene, kind))(camera, shot)

  def photograph(camera, shot):
    scenes = person, camera, shot, infrared
    return np.asarray(
      photographs._photograph_batch(scenes, view=world.view, **LARGER)
    )

  found = {'': photograph(camera, shot)}
  for kind in ('colour', 'resolution', 'viewpoint', 'background', 'noise'):
    found[kind] = photograph(*shifted(kind, camera, shot))
  assert_differ(found.values())

  def steps(kind):
    return np.abs(np.diff(found[kind].astype(float), axis=2)).mean()

  assert steps('noise') > 1.2 * steps('')
  assert steps('resolution') < 0.8 * steps('')
  colours = [found[kind].mean((0, 1, 2)) for kind in ('', 'colour')]
  assert np.ptp(colours[1] / colours[0]) > 0.05


def test_a_shifted_domain_is_no_unseen_one_if_its_domain_is_trained_on():
  with pytest.raises(errors.DataError, match='plaza'):
    targets('plaza:shift=noise')


@pytest.mark.parametrize('part', ['shift=blur', 'shift=', 'size=3', 'shots=x'])
def test_wrong_options(part):
  with pytest.raises(errors.ConfigError, match='colour|resolution'):
    targets(f'mall:{part}')
