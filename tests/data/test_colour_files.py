import numpy as np
import photo_trees
import pytest
from PIL import Image

from fedreid_jax import errors, load_config
from fedreid_jax.config import recipes, validation
from fedreid_jax.data.folder import folder_source


def noise(spread):
  """Grey levels with a difference of up to `spread` between the channels."""
  rng = np.random.default_rng(0)
  grey = rng.integers(60, 190, (64, 32, 1))
  return np.uint8(grey + rng.integers(0, spread + 1, (64, 32, 3)))


@pytest.mark.parametrize(
  'pixels, name, coloured',
  [
    (noise(12), 'x.png', False),
    (noise(12), 'x.jpg', False),
    (np.full((64, 32, 3), (240, 232, 214), np.uint8), 'x.jpg', False),  # paper
    (np.array(photo_trees.picture(3, 0)), 'x.jpg', True),
    (np.array(photo_trees.picture(3, 0)), 'x.gif', True),
    (noise(0)[..., 0], 'x.png', False),
  ],
)
def test_what_is_coloured(tmp_path, pixels, name, coloured):
  Image.fromarray(pixels).save(tmp_path / name)
  assert folder_source.is_coloured(tmp_path / name) is coloured


def test_one_coloured_part_is_enough(tmp_path):
  pixels = noise(5)
  pixels[32:48, 8:24] = (150, 40, 40)  # an eighth
  Image.fromarray(pixels).save(tmp_path / 'x.png')
  assert folder_source.is_coloured(tmp_path / 'x.png')


def test_what_cannot_be_read_is_not_coloured(tmp_path):
  (tmp_path / 'x.jpg').write_bytes(b'no image')
  assert not folder_source.is_coloured(tmp_path / 'x.jpg')
  assert not folder_source.is_coloured(tmp_path / 'missing.jpg')


@pytest.fixture
def tree(tmp_path):
  for shot in range(40):
    photo_trees.save(tmp_path / f'{shot}.png', 1, shot)
  return sorted(tmp_path.iterdir())


GREY = 'data.channels=grey,data.mean=(0.5,),data.std=(0.25,)'


@pytest.mark.parametrize(
  'arg, message',
  [
    ('photos', ''),
    ('omniglot', 'made grey and inverted.*data.channels=grey and data.invert'),
    ('omniglot,data.channels=grey', 'be inverted .*write data.invert=True if'),
    ('omniglot,data.invert=True', 'be made grey .*write data.channels=grey if'),
    ('omniglot,data.invert=True,data.channels=grey', ''),
    ('omniglot,data.colour_as=("grey","inverted")', ''),
    ('photos,data.invert=True', ''),
    (f'photos,{GREY}', ''),
    ('photos,data.invert=True,data.colour_as=()', 'be inverted'),
  ],
)
def test_a_preset_converts_no_colours_but_a_user_may(tree, arg, message):
  config = validation.validate(recipes.recipe('fedpav', arg)).data
  root = tree[0].parent
  if not message:
    folder_source.check_colours(tree, config, root)
    return
  with pytest.raises(errors.ConfigError, match=message):
    folder_source.check_colours(tree, config, root)
  for shot, path in enumerate(tree):
    Image.fromarray(noise(0)[..., 0]).save(path)
    if shot % 5 == 0:  # a fifth of the files, and less of those looked at
      photo_trees.save(path, 1, shot)
  folder_source.check_colours(tree, config, root)


def test_python_users_write_it_too(tree):
  config = load_config('fedpav:photos', {'data.invert': True})
  assert config.data.colour_as == ('inverted',)
  data = validation.validate(config).data
  folder_source.check_colours(tree, data, tree[0].parent)
  config = load_config(
    'fedpav:photos', data={'channels': 'grey', 'mean': (0.5,), 'std': (0.25,)}
  )
  assert config.data.colour_as == ('grey',)
  config = load_config('fedpav:photos')
  config.data.invert = True
  data = validation.validate(config).data
  with pytest.raises(errors.ConfigError, match='inverted'):
    folder_source.check_colours(tree, data, tree[0].parent)
