"""Guarantees of the synthetic images and of the versions of their world."""

import colorsys
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.data import load
from fedreid_jax.data.options import Data
from fedreid_jax.data.synthetic import (
  appearance,
  body,
  photographs,
  synthetic_source,
  versions,
  worlds,
)

SIZE = dict(height=16, width=8)  # one size: one compilation for the file
BATCH = photographs._BATCH
WORLD = worlds.find('synthetic')


def generate(domain=0, identities=3, cameras=2, shots=2, **kwargs):
  return photographs.generate(
    domain, identities, cameras, shots, **SIZE, **kwargs
  )


def sample(first=0, brightness_correlation=0.0):
  """Parameters of the first shot of as many identities as a batch holds."""
  zero = np.zeros(BATCH, np.int32)
  ids = zero + 1, np.arange(first, first + BATCH, dtype=np.int32), zero, zero
  which = np.uint32(0), np.int32(0), np.float32(brightness_correlation)
  return photographs._sample_batch(*which, *ids, world=WORLD)


@pytest.fixture(scope='module')
def scenes():
  return sample()


def photograph(scenes, infrared=False):
  scenes = (*scenes[:3], np.full(BATCH, infrared))
  return np.asarray(
    photographs._photograph_batch(scenes, view=WORLD.view, **SIZE)
  )


def test_order_shape_and_type():
  sample = generate(identities=2, cameras=3, shots=2, first_identity=7)
  assert sample.images.shape == (12, 16, 8, 3)
  assert sample.images.dtype == np.uint8
  assert sample.identities.dtype == sample.cameras.dtype == np.int32
  np.testing.assert_array_equal(sample.identities, [7] * 6 + [8] * 6)
  np.testing.assert_array_equal(sample.cameras, [0, 0, 1, 1, 2, 2] * 2)


def test_images_depend_on_the_seed():
  np.testing.assert_array_equal(generate().images, generate().images)
  assert (generate().images != generate(seed=1).images).mean() > 0.5


def test_more_of_anything_leaves_the_images_that_were_there():
  def cube(identities, cameras, shots):
    images = generate(2, identities, cameras, shots).images
    return images.reshape(identities, cameras, shots, *images.shape[1:])

  few, many = cube(2, 2, 1), cube(5, 7, 2)  # 4 and 70 images: two batches
  np.testing.assert_array_equal(few, many[:2, :2, :1])
  tail = generate(2, 3, 7, 2, first_identity=2).images
  np.testing.assert_array_equal(tail, many[2:].reshape(tail.shape))


def test_every_image_is_another():
  images = generate(identities=4, cameras=4, shots=4).images
  assert len(np.unique(images.reshape(64, -1), axis=0)) == 64


def test_compiles_once_whatever_the_counts():
  generate()
  before = photographs._photograph_batch._cache_size()
  for counts in ((1, 1, 1), (5, 3, 1), (9, 4, 2)):
    generate(3, *counts, modality='infrared')
  assert photographs._photograph_batch._cache_size() == before


def test_infrared_is_grey_and_another_moment():
  visible = generate(1).images.astype(float)
  infrared = generate(1, modality='infrared').images
  assert (infrared == infrared[..., :1]).all()
  assert visible.std(axis=-1).mean() > 3
  assert np.abs(visible.mean(-1) - infrared[..., 0]).mean() > 10


def test_correlation_changes_no_visible_image():
  np.testing.assert_array_equal(
    generate(1, brightness_correlation=0.7).images, generate(1).images
  )
  infrared = [
    generate(1, brightness_correlation=s, modality='infrared').images
    for s in (0.0, 0.7)
  ]
  assert (infrared[0] != infrared[1]).mean() > 0.1
  with pytest.raises(errors.ConfigError, match='brightness_correlation'):
    generate(1, brightness_correlation=1.5)


def test_infrared_sees_no_visible_colour(scenes):
  person, camera, shot, _ = scenes
  materials = np.array(person.materials)
  materials[..., :3] = 1 - materials[..., :3]
  dyed = person._replace(materials=materials)
  before, after = (
    photograph((p, camera, shot), infrared=True) for p in (person, dyed)
  )
  np.testing.assert_array_equal(before, after)
  assert (photograph((dyed, camera, shot)) != photograph(scenes)).mean() > 0.1


def wardrobes(brightness_correlation):
  return np.concatenate(
    [
      sample(first, brightness_correlation)[0].materials
      for first in range(0, 6 * BATCH, BATCH)
    ]
  )


@pytest.mark.parametrize(
  'brightness_correlation, low, high',
  [(0.0, -0.2, 0.2), (0.5, 0.5, 0.9), (1.0, 0.99, 1.01)],
)
def test_infrared_reflectance_is_brightness_as_far_as_told(
  brightness_correlation, low, high
):
  """Near 0: four standard errors of 384 pairs."""
  materials = wardrobes(brightness_correlation)
  for garment in (appearance.UPPER, appearance.LOWER, appearance.BAG):
    bright = materials[:, garment, :3] @ np.array(appearance.LUMINANCE)
    r = np.corrcoef(bright, materials[:, garment, 3])[0, 1]
    assert low < r < high
  gap = (
    materials[:, appearance.UPPER, 3] - materials[:, appearance.UPPER_ACCENT, 3]
  )
  assert np.abs(gap).min() > 0.2  # a texture shows in infrared too


def test_a_print_is_seen_from_the_front_only(scenes):
  person, camera, shot, _ = scenes
  person = person._replace(
    upper_texture=np.full(BATCH, body.PRINT, np.int32),
    print_size=np.full(BATCH, 0.5, np.float32),
  )
  materials = np.array(person.materials)
  materials[:, appearance.UPPER_ACCENT] = 0.97
  other = person._replace(materials=materials)
  shot = shot._replace(yaw=-camera.yaw, occluder=np.zeros(BATCH, np.int32))

  def changed(turn):
    turned = shot._replace(yaw=shot.yaw + np.float32(turn))
    before, after = (photograph((p, camera, turned)) for p in (person, other))
    return (before != after).any(axis=(1, 2, 3))

  assert changed(0.0).mean() > 0.8
  assert not changed(np.pi).any()


def test_domains_look_different():
  looks = np.stack(
    [
      generate(d, 32, 4, 1).images.reshape(2, -1, 3).mean(1)
      for d in range(len(photographs.DOMAIN_NAMES))
    ]
  )
  within = np.linalg.norm(looks[:, 0] - looks[:, 1], axis=-1)
  means = looks.mean(1)
  between = np.linalg.norm(means[:, None] - means[None], axis=-1)
  np.fill_diagonal(between, np.inf)
  assert np.median(between.min(1)) > 1.5 * np.median(within)


def test_a_camera_has_one_background():
  """The edges of an image tell its camera, whoever is in the middle."""
  sample = generate(identities=32, cameras=4, shots=1)
  edges = sample.images[:, :, [0, 1, -2, -1]].reshape(128, -1).astype(float)
  distances = np.linalg.norm(edges[:, None] - edges[None], axis=-1)
  same = sample.identities[:, None] == sample.identities
  distances[same] = np.inf
  nearest = sample.cameras[distances.argmin(axis=1)]
  assert (nearest == sample.cameras).mean() > 0.7


def test_light_falls_from_one_side(scenes):
  person, camera, shot, _ = scenes
  shot = shot._replace(occluder=np.zeros(BATCH, np.int32))
  right, left = (
    photograph((person, camera._replace(light=np.full(BATCH, x)), shot))
    for x in np.float32([1, -1])
  )
  body = (right.astype(float) - left)[:, 3:11].mean(axis=(0, 1, 3))
  assert body[4:6].mean() > 2 and body[2:4].mean() < -2


def test_a_domain_without_a_name_is_a_domain():
  assert generate(100, 1, 1, 1).images.std() > 10


@pytest.mark.parametrize(
  'arguments',
  [
    dict(identities=0),
    dict(cameras=-1),
    dict(shots=1.5),
    dict(domain=-1),
    dict(seed=-1),
    dict(seed=2**31),
    dict(first_identity=-2),
    dict(modality='thermal'),
  ],
)
def test_invalid_arguments(unchecked, arguments):
  with pytest.raises(errors.ConfigError, match=next(iter(arguments))):
    generate(**arguments)


def test_contact_sheet_is_a_picture(tmp_path):
  path = tmp_path / 'sheet.png'
  few = dict(domains=('plaza', 'mall'), identities=2, cameras=2)
  photographs.write_contact_sheet(path, **few, **SIZE)
  with Image.open(path) as sheet:
    assert sheet.format == 'PNG'
    assert sheet.height >= 3 * 16 and sheet.width >= 4 * 8
    assert np.asarray(sheet.convert('L')).std() > 10


def test_contact_sheet_that_cannot_be_written(tmp_path):
  with pytest.raises(errors.ResourceError, match='sheet.png'):
    photographs.write_contact_sheet(
      tmp_path / 'missing' / 'sheet.png',
      domains=('plaza',),
      identities=1,
      cameras=1,
      **SIZE,
    )


def test_spread_cameras_differ_more_and_one_changes_nothing():
  plain, one, wide = (
    generate(1, 8, 4, 1, camera_spread=s).images.astype(float)
    for s in (1.0, 1.0, 8.0)
  )
  np.testing.assert_array_equal(plain, one)

  def between(images):
    """Spread of the cameras' mean colours."""
    return images.reshape(8, 4, -1, 3).mean(axis=(0, 2)).std(axis=0).mean()

  assert between(wide) > 1.5 * between(plain)


def test_spread_is_the_power_of_what_a_camera_multiplies():

  @jax.jit
  def both():
    key = jax.random.key(0)
    zero, one, two = (jnp.int32(k) for k in range(3))
    place = appearance.sample_domain(key, two)
    camera = appearance.sample_camera(key, place, zero, two, one)
    return camera, appearance.spread(camera, 3.0)

  camera, wide = jax.device_get(both())
  for field in ('gain', 'exposure', 'gamma'):
    before, after = getattr(camera, field), getattr(wide, field)
    np.testing.assert_allclose(np.log(after), 3 * np.log(before), rtol=1e-4)
  for field in ('yaw', 'pitch', 'seed', 'materials'):
    np.testing.assert_array_equal(getattr(camera, field), getattr(wide, field))


def test_a_spread_below_one_is_refused():
  with pytest.raises(errors.ConfigError, match='camera_spread'):
    generate(camera_spread=0.5)


GOLDEN = Path(__file__).parents[1] / 'golden' / 'synthetic_v1.npz'
CASES = {
  'plaza': dict(domain=0),
  'mall': dict(domain=3, seed=7, first_identity=5),
  'alley_infrared': dict(
    domain=7, modality='infrared', brightness_correlation=0.5
  ),
  'garden_spread': dict(domain=11, camera_spread=3.0),
}
NUM = 256
GARMENTS = (appearance.UPPER, appearance.LOWER)


@pytest.mark.parametrize('name', CASES)
def test_the_first_world_has_the_pixels_it_had(name):
  """Types of CPU may round a few pixels to the next level."""
  images = photographs.generate(
    **CASES[name],
    identities=3,
    cameras=2,
    shots=2,
    height=16,
    width=8,
    source='synthetic_v1',
  ).images
  with np.load(GOLDEN) as golden:
    difference = np.abs(images.astype(int) - golden[name])
  assert difference.max() <= 1 and (difference > 0).mean() < 1e-3


@functools.cache
def scenes_worlds(source, domain, seed=0):
  """Parameters of the first shots of persons by cameras of their own."""
  each = np.arange(NUM, dtype=np.int32)
  found = _scenes(worlds.find(source), domain, seed, each)
  return jax.device_get(found)


@functools.partial(jax.jit, static_argnums=0)
def _scenes(world, domain, seed, each):
  def one(k):
    zero = jnp.int32(0)
    return world.sample(
      jax.random.key(seed),
      jnp.int32(domain),
      k,
      k,
      zero,
      modality=zero,
      brightness_correlation=0.0,
    )

  return jax.vmap(one)(each)


def hues(source, domain, seed):
  """Hue of each garment, in [0, 1); -1 for black, grey and white."""
  colours = np.asarray(scenes_worlds(source, domain, seed)[0].materials)
  colours = colours[:, GARMENTS, :3].reshape(-1, 3)
  hsv = np.array([colorsys.rgb_to_hsv(*colour) for colour in colours])
  return np.where((hsv[:, 1] > 0.2) & (hsv[:, 2] > 0.12), hsv[:, 0], -1)


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 5])
def test_no_hue_dominates_a_domain(seed):
  """At most a third of the garments are within 30 degrees of hue."""
  starts = np.arange(0, 1, 1 / 72)[:, None]
  for domain in range(len(photographs.DOMAIN_NAMES)):
    found = hues('synthetic', domain, seed)
    inside = (found >= 0) & ((found - starts) % 1 < 1 / 12)
    assert inside.mean(axis=1).max() < 1 / 3
    assert 0.25 < (found < 0).mean() < 0.75


def test_green_is_the_colour_of_the_first_world_only():
  def green(source):
    found = [hues(source, domain, 0) for domain in range(8)]
    return np.array([((h > 0.2) & (h < 0.46)).mean() for h in found])

  assert (green('synthetic_v1') > 0.2).mean() >= 0.5
  assert green('synthetic').max() < 0.15


def test_fashions_differ_between_domains():
  means = []
  for domain in range(8):
    materials = scenes_worlds('synthetic', domain)[0].materials[:, GARMENTS, :3]
    halves = np.asarray(materials).reshape(2, NUM // 2, -1)
    means.append(np.sort(halves, axis=1)[:, :: NUM // 16].reshape(2, -1))
  means = np.stack(means)
  within = np.linalg.norm(means[:, 0] - means[:, 1], axis=-1)
  between = np.linalg.norm(means[:, None, 0] - means[None, :, 1], axis=-1)
  np.fill_diagonal(between, np.inf)
  assert (between.min(axis=1) > within).mean() > 0.7


def test_boxes_are_those_of_a_detector():
  person, _, shot, _ = jax.tree.map(
    lambda *each: np.concatenate(each),
    *(scenes_worlds('synthetic', 0, seed) for seed in range(4)),
  )
  view = worlds.find('synthetic').view

  def down(person, shot):
    edges = jnp.array([0.0, 1.0])[:, None], jnp.zeros((1, 1))
    return view.frame(person, shot, edges[1], edges[0]).down

  found = jax.jit(jax.vmap(down))(person, shot)
  top, bottom = np.asarray(found)[:, :, 0].T
  assert 0.10 < (bottom < 0.93).mean() < 0.40  # cut feet
  assert 0.02 < (top > 0.01).mean() < 0.15  # cut head
  assert 0.05 < (bottom - top > 1.25).mean() < 0.25  # too large
  assert (bottom > 0.6).all() and (top < 0.15).all()
  assert (np.abs(shot.left) > 0.06).mean() > 0.05  # beside the person


def test_persons_of_one_version_are_others_in_the_next():
  first, second = (scenes_worlds(source, 2)[0] for source in versions.VERSIONS)
  for field in ('height', 'build', 'shoulders'):
    one, two = (np.asarray(getattr(p, field)) for p in (first, second))
    assert np.abs(one - two).max() > 0.05
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.25


def test_a_name_without_a_version_is_the_newest_one():
  assert worlds.find('synthetic') is worlds.find(versions.NEWEST)
  assert worlds.find('synthetic') is not worlds.find(versions.FIRST)
  assert versions.of_file('synthetic') == versions.FIRST
  for function in (versions.resolve, versions.of_file):
    assert [function(v) for v in versions.VERSIONS] == [*versions.VERSIONS]
    assert function('folder') == 'folder'
  with pytest.raises(errors.ConfigError, match='synthetic_v1'):
    worlds.find('synthetic_v9')


def test_every_version_is_a_source_with_a_digest_of_its_own(monkeypatch):
  asked, digests = [], []

  def images(*sizes, source, **options):
    asked.append(source)
    return np.zeros((1, 1, 1, 3), np.uint8)

  monkeypatch.setattr(synthetic_source, 'kept_images', images)
  for name in versions.NAMES:
    assert load.SOURCES[name] is synthetic_source.load
    config = Data(sources=('plaza',), targets=('mall',), source=name)
    source = synthetic_source.load(config)
    digests.append(source.digest)
    source.domains[0].images()
  assert digests[0] == digests[2] != digests[1]
  assert [worlds.find(source) for source in asked] == [
    worlds.find(source) for source in versions.NAMES
  ]
  # Runs from before there were versions have this digest.
  assert digests[1].startswith('plaza,synthetic,')
