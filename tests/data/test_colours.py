"""Colour jitter against worked numbers, NumPy, Pillow and colorsys."""

import colorsys
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image, ImageEnhance

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.data import augment, colours

KEY = jax.random.key(0)
GREY = np.array([0.2989, 0.587, 0.114])
NONE = {'brightness': 0.0, 'contrast': 0.0, 'saturation': 0.0, 'hue': 0.0}


def photographs(num=4):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (num, 6, 5, 3), dtype=np.uint8)


def values(seed=0):
  return np.random.default_rng(seed).uniform(0, 1, (6, 5, 3)).astype('f4')


def transforms(**fields: Any):
  config = augment.Augment(pad=0, flip=0.0, **fields)
  made = augment.make(config, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
  return augment.Transforms(jax.jit(made.train), jax.jit(made.test))


def amounts(**given: float) -> dict[str, Any]:
  return {f'jitter_{name}': x for name, x in (NONE | given).items()}


def in_numpy(name, x, factor):
  x = np.asarray(x, np.float64)
  if name == 'hue':
    return np.array(
      [
        [colorsys.hsv_to_rgb((h + factor) % 1, s, v) for h, s, v in row]
        for row in [[colorsys.rgb_to_hsv(*pixel) for pixel in r] for r in x]
      ]
    )
  grey = (x * GREY).sum(-1, keepdims=True)
  other = {'brightness': 0 * x, 'contrast': grey.mean(), 'saturation': grey}
  return np.clip(factor * x + (1 - factor) * other[name], 0, 1)


FUNCTIONS: dict[str, Any] = dict(
  zip(colours.Amounts._fields, colours.CHANGES, strict=True)
)


def changed(name, x, factor):
  return np.asarray(jax.jit(FUNCTIONS[name])(np.float32(x), factor))


@pytest.mark.parametrize(
  'name, factor, expected',
  [
    ('brightness', 1.5, [[0.6, 0.3, 0.0], [1.0, 0.75, 0.3]]),
    ('contrast', 0.0, [[0.381245] * 3] * 2),
    ('contrast', 2.0, [[0.418755, 0.018755, 0.0], [1, 0.618755, 0.018755]]),
    ('saturation', 0.0, [[0.23696] * 3, [0.52553] * 3]),
    ('saturation', 2.0, [[0.56304, 0.16304, 0], [0.87447, 0.47447, 0]]),
    ('hue', 1 / 3, [[0.0, 0.4, 0.2], [0.2, 0.7, 0.5]]),
  ],
)
def test_worked_pixels(name, factor, expected):
  """The luminances are .23696 and .52553, and their mean is .381245."""
  x = np.array([[[0.4, 0.2, 0.0], [0.7, 0.5, 0.2]]])
  grey = 0.2989 * 0.4 + 0.587 * 0.2, 0.2989 * 0.7 + 0.587 * 0.5 + 0.114 * 0.2
  assert grey == pytest.approx((0.23696, 0.52553))
  np.testing.assert_allclose(changed(name, x, factor)[0], expected, atol=1e-5)


@pytest.mark.parametrize('name', FUNCTIONS)
@pytest.mark.parametrize('factor', [0.3, 0.9, 1.4])
def test_changes_equal_their_definitions(name, factor):
  found = changed(name, values(), factor)
  np.testing.assert_allclose(found, in_numpy(name, values(), factor), atol=1e-5)
  # Another change or factor is another result.
  for other in NONE.keys() - {name}:
    assert abs(found - in_numpy(other, values(), factor)).max() > 0.02
  assert abs(found - in_numpy(name, values(), 1 - factor)).max() > 0.02


@pytest.mark.parametrize('name', ['brightness', 'contrast', 'saturation'])
def test_changes_are_those_of_pillow_but_for_rounding(name):
  pixels = photographs(1)[0]
  kind = 'Color' if name == 'saturation' else name.capitalize()
  image = getattr(ImageEnhance, kind)(Image.fromarray(pixels)).enhance(0.6)
  found = changed(name, pixels / 255, 0.6) * 255
  np.testing.assert_allclose(found, np.asarray(image), atol=1.5)


@pytest.mark.parametrize('name', NONE)
def test_each_amount_bounds_its_factor(name):
  """The factor of each image is found, and is uniform between the bounds."""
  amount = 0.3
  images = np.tile(photographs(1), (400, 1, 1, 1))
  v = transforms(jitter=1.0, **amounts(**{name: amount}))
  found = np.asarray(v.train(KEY, images))
  centre = 0.0 if name == 'hue' else 1.0
  grid = np.linspace(centre - amount, centre + amount, 61)
  made = np.array([in_numpy(name, images[0] / 255, f) for f in grid])
  away = np.abs(found[:, None] - made).max(axis=(2, 3, 4))
  assert away.min(axis=1).max() < 0.05
  factors = grid[away.argmin(axis=1)]
  assert abs(factors.mean() - centre) < 0.05
  assert abs(factors.std() - amount / 3**0.5) < 0.03


def test_changes_are_made_in_every_order():
  images = np.tile(photographs(1), (60, 1, 1, 1))
  # A factor above 1 and clipping: the order of two changes matters.
  both = amounts(brightness=1.0, saturation=1.0)
  found = np.asarray(transforms(jitter=1.0, **both).train(KEY, images))
  orders = set()
  keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, np.arange(60))
  for k, key in enumerate(jax.vmap(jax.random.fold_in, (0, None))(keys, 6)):
    own = jax.random.split(key, 3)
    f = jax.random.uniform(own[0], (4,), minval=0.0, maxval=2.0)
    order = np.asarray(jax.random.permutation(own[1], 2))
    x = images[0] / 255
    for which in order:
      name = ('brightness', 'saturation')[which]
      x = in_numpy(name, x, float(f[(0, 2)[which]]))
    np.testing.assert_allclose(found[k], x, atol=1e-4)
    orders.add(tuple(order))
  assert orders == {(0, 1), (1, 0)}


def test_jitter_happens_as_often_as_asked():
  images = np.tile(photographs(1), (1000, 1, 1, 1))
  v = transforms(jitter=0.3)
  away = np.abs(np.asarray(v.train(KEY, images)) - np.asarray(v.test(images)))
  changed = away.max(axis=(1, 2, 3)) > 1e-4
  assert abs(changed.mean() - 0.3) < 0.05
  np.testing.assert_array_equal(away[~changed], 0)


def test_jitter_changes_no_other_random_number():
  """Windows, mirrors and erased rectangles are those without jitter."""
  images = np.full((64, 12, 8, 3), 200, np.uint8)
  images[:, ::2, ::3] = 90
  grey: dict[str, Any] = {'erase': 0.5, 'erase_fill': (7.0, 7.0, 7.0)}
  config = augment.Augment(pad=2, flip=0.5, **grey)
  given = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
  plain = augment.make(config, *given)
  jittered = augment.make(
    augment.Augment(
      pad=2, flip=0.5, jitter=1.0, **grey, **amounts(saturation=1.0, hue=0.5)
    ),
    *given,
  )
  # Grey images: saturation and hue change nothing.
  np.testing.assert_allclose(
    jax.jit(jittered.train)(KEY, images),
    jax.jit(plain.train)(KEY, images),
    atol=1e-3,
  )


def test_jitter_is_independent_of_erasing():
  """The key is none of those of the other changes."""
  key = jax.random.key_data(jax.random.fold_in(KEY, augment.JITTER))
  others = jax.random.key_data(jax.random.split(KEY, 6))
  assert not (np.asarray(others) == np.asarray(key)).all(axis=1).any()


def test_colours_of_images_without_any():
  with pytest.raises(errors.ConfigError, match='1 channels'):
    augment.make(augment.Augment(jitter=0.5), (0.5,), (0.5,))


def test_jitter_of_no_amount_is_refused():
  pairs = ','.join(f'augment.{k}=0.0' for k in amounts())
  config = recipes.recipe('fedpav', f'smoke,augment.jitter=0.5,{pairs}')
  with pytest.raises(errors.ConfigError, match=r'augment\.jitter'):
    validation.validate(config)
