import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fedreid_jax.data import augment

KEY = jax.random.key(0)


def views(pad=0, flip=0.0, erase=0.0):
  config = ConfigDict(
    {'pad': pad, 'flip': flip, 'erase': erase, 'erase_fill': ()}
  )
  return augment.make(config, (0.5, 0.25, 0.0), (0.5, 0.5, 1.0))


def photographs(num=4):
  rng = np.random.default_rng(0)
  return jnp.asarray(rng.integers(0, 256, (num, 6, 5, 3), dtype=np.uint8))


def test_test_view_normalises():
  image = jnp.full((1, 1, 1, 3), 255, jnp.uint8)
  np.testing.assert_allclose(
    views().test(image)[0, 0, 0], [1.0, 1.5, 1.0], rtol=1e-6
  )


def test_without_changes_the_train_view_is_the_test_view():
  images = photographs()
  v = views()
  np.testing.assert_array_equal(v.train(KEY, images), v.test(images))


def test_flip_mirrors_left_and_right():
  images = photographs()
  v = views(flip=1.0)
  np.testing.assert_array_equal(
    v.train(KEY, images), v.test(images[:, :, ::-1])
  )


def test_flip_happens_as_often_as_asked():
  images = jnp.tile(photographs(1), (2000, 1, 1, 1))
  v = views(flip=0.3)
  out = np.asarray(v.train(KEY, images))
  flipped = (out != np.asarray(v.test(images))).any(axis=(1, 2, 3))
  assert abs(flipped.mean() - 0.3) < 0.04


def test_crop_is_a_window_of_the_padded_image():
  image = photographs(1)[0]
  wide = np.pad(np.asarray(image), ((2, 2), (2, 2), (0, 0)))
  seen = set()
  for k in range(40):
    out = np.asarray(augment.pad_and_crop(jax.random.key(k), image, 2))
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
  for k in range(60):
    out = np.asarray(augment.erase(jax.random.key(k), image, 1.0))[..., 0]
    gone = out == 0
    if not gone.any():
      continue
    hit += 1
    rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
    box = gone[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    assert box.all() and box.sum() == gone.sum()
    assert 0.01 <= gone.mean() <= 0.45
  assert hit > 40
  assert (augment.erase(KEY, image, 0.0) == 1).all()


def test_an_image_depends_on_its_place_and_not_on_the_others():
  images = photographs(4)
  v = views(pad=2, flip=0.5, erase=0.5)
  whole = v.train(KEY, images)
  np.testing.assert_array_equal(whole[:2], v.train(KEY, images[:2]))
