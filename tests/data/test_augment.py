import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import augment, colours

AREA = (0.02, 0.4)
KEY = jax.random.key(0)


def transforms(pad=0, flip=0.0, erase=0.0, **others):
  config = augment.Augment(pad=pad, flip=flip, erase=erase, **others)
  made = augment.make(config, (0.5, 0.25, 0.0), (0.5, 0.5, 1.0))
  return augment.Transforms(jax.jit(made.train), jax.jit(made.test))


def photographs(num=4):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (num, 6, 5, 3), dtype=np.uint8)


def of_keys(num, change):
  """Returns the results of `change(key)` for several keys."""
  own = jax.jit(jax.vmap(lambda seed: change(jax.random.key(seed))))
  return np.asarray(own(np.arange(num)))


def test_test_transform_normalises():
  image = np.full((1, 1, 1, 3), 255, np.uint8)
  np.testing.assert_allclose(
    transforms().test(image), [[[[1.0, 1.5, 1.0]]]], rtol=1e-6
  )


def test_without_changes_both_transforms_are_equal():
  images = photographs()
  v = transforms()
  np.testing.assert_array_equal(v.train(KEY, images), v.test(images))


def test_flip_mirrors_left_and_right():
  images = photographs()
  v = transforms(flip=1.0)
  np.testing.assert_array_equal(
    v.train(KEY, images), v.test(images[:, :, ::-1])
  )


def test_flip_happens_as_often_as_asked():
  images = np.tile(photographs(1), (2000, 1, 1, 1))
  v = transforms(flip=0.3)
  out = np.asarray(v.train(KEY, images))
  flipped = (out != np.asarray(v.test(images))).any(axis=(1, 2, 3))
  assert abs(flipped.mean() - 0.3) < 0.04


def test_enlarged_images_are_windows_of_pytorchs():
  """A ramp of eight pixels, enlarged to nine: half-pixel centres, clamped."""
  ramp = jnp.tile(jnp.arange(8.0)[:, None, None], (1, 8, 1))
  centres = (np.arange(9) + 0.5) * 8 / 9 - 0.5
  wide = np.clip(centres, 0, 7)
  seen = set()
  images = of_keys(40, lambda key: augment.enlarge_and_crop(key, ramp, 1.0))
  for out in images[..., 0]:
    rows = [t for t in (0, 1) if np.allclose(out[:, 0], wide[t : t + 8])]
    assert len(rows) == 1 and np.allclose(out, out[:, :1])
    seen.update(rows)
  assert seen == {0, 1}


def test_enlarging_happens_as_often_as_asked():
  images = np.tile(photographs(1), (2000, 1, 1, 1))
  v = transforms(enlarge=0.3)
  out = np.asarray(v.train(KEY, images))
  changed = (out != np.asarray(v.test(images))).any(axis=(1, 2, 3))
  assert abs(changed.mean() - 0.3) < 0.04


def test_crop_is_a_window_of_the_padded_image():
  image = jnp.asarray(photographs(1)[0])
  wide = np.pad(np.asarray(image), ((2, 2), (2, 2), (0, 0)))
  seen = set()
  for out in of_keys(40, lambda key: augment.pad_and_crop(key, image, 2)):
    at = [
      (y, x)
      for y in range(5)
      for x in range(5)
      if (wide[y : y + 6, x : x + 5] == out).all()
    ]
    assert at
    seen.add(at[0])
  assert len(seen) > 10


def test_erase_is_one_rectangle_of_the_stated_area():
  image = jnp.ones((40, 20, 3))
  hit = 0
  images = of_keys(60, lambda key: augment.erase(key, image, 1.0, 0.0, AREA, 1))
  for gone in images[..., 0] == 0:
    if not gone.any():
      continue
    hit += 1
    rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
    box = gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert box.all() and box.sum() == gone.sum()
    assert 0.01 <= gone.mean() <= 0.45
  assert hit > 40
  never = of_keys(2, lambda key: augment.erase(key, image, 0.0, 0.0, AREA, 1))
  assert (never == 1).all()


def test_an_image_depends_on_its_place_and_not_on_the_others():
  images = photographs(4)
  v = transforms(pad=2, flip=0.5, erase=0.5)
  whole = np.asarray(v.train(KEY, images))
  np.testing.assert_array_equal(whole[:2], v.train(KEY, images[:2]))


def outcomes(image, changed):
  """Which of the five outcomes made each of `changed` from `image`."""
  luminance = np.repeat(image @ np.array([0.2989, 0.587, 0.114])[:, None], 3, 2)
  made = [image, *(image[..., [k] * 3] for k in range(3)), luminance]
  close = [np.abs(changed - m).max(axis=(1, 2, 3)) < 1e-5 for m in made]
  assert (np.sum(close, axis=0) == 1).all()
  return np.argmax(close, axis=0)


def drawn(v, num=1500, modalities=None):
  """The outcome of each image in a batch of one photograph."""
  images = np.tile(photographs(1), (num, 1, 1, 1))
  changed = v.train(KEY, images, modalities)
  return outcomes(np.asarray(v.test(images))[0], np.asarray(changed))


@pytest.mark.parametrize(
  'kinds, probability, expected',
  [
    ('exchange', 0.5, [0.5, 0.125, 0.125, 0.125, 0.125]),
    ('exchange', 1.0, [0, 0.25, 0.25, 0.25, 0.25]),
    ('copy', 2 / 3, [1 / 3, 2 / 9, 2 / 9, 2 / 9, 0]),
    ('grey', 0.5, [0.5, 0, 0, 0, 0.5]),
    ('adapt', 7 / 8, [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8]),
  ],
)
def test_channels_are_exchanged_as_often_as_asked(kinds, probability, expected):
  found = drawn(transforms(channel=probability, channel_kinds=kinds))
  share = np.bincount(found, minlength=5) / len(found)
  np.testing.assert_allclose(share, expected, atol=0.05)
  assert (share[np.array(expected) == 0] == 0).all()


def test_a_copied_channel_keeps_its_own_normalisation():
  """Of (0.6, 0.5, 0.4) normalised to 0.2, 0.5, 0.4; 0.3989 is of all three."""
  image = np.full((1, 1, 1, 3), np.float32([153, 127.5, 102]))
  train = transforms(channel=1.0).train
  seen = {
    round(float(largest), 4)
    for largest in of_keys(60, lambda key: train(key, image).max())
  }
  assert seen == {0.2, 0.5, 0.4, 0.3989}


def test_channels_are_exchanged_after_erasing():
  """The copies of a filled rectangle are the fill of one channel."""
  v = transforms(erase=1.0, erase_fill=(7.0, 8.0, 9.0), channel=1.0)
  images = np.zeros((40, 6, 5, 3), np.uint8)
  out = np.asarray(v.train(KEY, images))
  assert (out == out[..., :1]).all()
  assert {7.0, 8.0, 9.0} <= set(out.ravel().tolist())


def test_infrared_images_may_have_a_law_of_their_own():
  modalities = np.arange(1500) % 2
  found = drawn(transforms(infrared='adapt'), modalities=modalities)
  assert not found[::2].any()
  share = np.bincount(found[1::2], minlength=5) / 750
  np.testing.assert_allclose(
    share, [1 / 8, 1 / 4, 1 / 4, 1 / 4, 1 / 8], atol=0.06
  )


def test_the_second_third_of_a_batch_may_be_copies():
  modalities = np.arange(90) // 60
  v = transforms(infrared='adapt', copies='copy')
  found = drawn(v, 90, modalities)
  assert not found[:30].any()
  assert set(found[30:60]) == {1, 2, 3}
  assert len(set(found[60:])) > 2


def test_laws_change_no_other_random_number():
  images = photographs()
  with_law = transforms(
    pad=2, flip=0.5, erase=0.5, channel=1.0, channel_kinds='grey'
  )
  without = transforms(pad=2, flip=0.5, erase=0.5)
  np.testing.assert_allclose(
    with_law.train(KEY, images),
    jax.jit(colours.luminance)(without.train(KEY, images)),
    rtol=1e-5,
    atol=1e-6,
  )


def test_grey_comes_before_normalisation():
  image = np.full((1, 1, 1, 3), np.uint8([100, 50, 200]))
  grey = 0.2989 * 100 + 0.587 * 50 + 0.114 * 200
  np.testing.assert_allclose(
    transforms(grey=1.0).train(KEY, image),
    transforms().test(np.full((1, 1, 1, 3), grey, np.float32)),
    rtol=1e-5,
  )
  many = np.tile(image, (1000, 1, 1, 1))
  plain = np.asarray(transforms().test(many))
  away = np.asarray(transforms(grey=0.5).train(KEY, many)) - plain
  changed = np.abs(away).max(axis=(1, 2, 3)) > 0.01
  assert abs(changed.mean() - 0.5) < 0.06


@pytest.mark.parametrize('turn', [0.0, 0.1, 0.5, 0.9])
def test_hues_are_rotated_as_by_colorsys(turn):
  image = np.random.default_rng(0).uniform(0, 1, (5, 4, 3))
  image[0, 0], image[0, 1], image[0, 2] = 0.3, [0.2, 0.9, 0.9], [0.9, 0.9, 0]
  expected = np.empty_like(image)
  for at in np.ndindex(5, 4):
    h, s, v = colorsys.rgb_to_hsv(*image[at])
    expected[at] = colorsys.hsv_to_rgb((h + turn) % 1, s, v)
  np.testing.assert_allclose(
    jax.jit(colours.rotate_hue)(image.astype(np.float32), turn),
    expected,
    atol=1e-5,
  )


def test_only_hues_of_infrared_images_are_rotated():
  images = photographs()
  v = transforms(infrared='hue')
  plain = np.asarray(v.test(images))
  out = np.asarray(v.train(KEY, images, np.array([0, 1, 0, 1])))
  np.testing.assert_array_equal(out[::2], plain[::2])
  assert (np.abs(out - plain)[1::2].max(axis=(1, 2, 3)) > 0.1).all()
  grey = images[..., :1].repeat(3, axis=-1)
  np.testing.assert_allclose(
    v.train(KEY, grey, np.ones(4, np.int32)), v.test(grey), atol=1e-5
  )


def test_erased_areas_and_tries():
  image = jnp.ones((40, 20, 3))
  keys = jax.random.split(KEY, 400)

  def gone(tries):
    def erase(key):
      return augment.erase(key, image, 1.0, 0.0, (0.2, 0.8), tries)

    out = jax.jit(jax.vmap(erase))(keys)
    return 1.0 - np.asarray(out)[..., 0].mean(axis=(1, 2))

  once, often = gone(1), gone(20)
  hit = once > 0
  assert 0.5 < hit.mean() < 0.85 and (often > 0).all()
  np.testing.assert_array_equal(once[hit], often[hit])
  assert 0.18 < often.min() and often.max() < 0.82


def test_colours_of_images_without_any():
  config = augment.Augment(channel=0.5)
  with pytest.raises(errors.ConfigError, match='1 channels'):
    augment.make(config, (0.5,), (0.5,))
