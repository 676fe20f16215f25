import json

import jax
import numpy as np
import pytest
import toy
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.models import functional, networks, weights

ABOUT = {'name': 'toy', 'model': {'name': 'convnet'}, 'world_seed': 1000}


def variables(**fields):
  """Variables of a network, every leaf with numbers of its own."""
  config = toy.toy_config().model
  for name, value in fields.items():
    config[name] = value
  model = functional.wrap(networks.build(config, 3), toy.IMAGE_SHAPE)
  rng = np.random.default_rng(len(fields))
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return {n: rng.random(x.shape, np.float32) for n, x in shapes.items()}


@pytest.fixture
def saved(tmp_path):
  path, own = tmp_path / 'toy.safetensors', variables()
  weights.save(path, own, ABOUT)
  return path, own


def test_the_backbone_is_loaded_and_nothing_else(saved):
  path, own = saved
  before = {n: np.zeros_like(x) for n, x in own.items()}
  loaded, names = weights.load(str(path), before)
  assert set(names) == {n for n in own if '/backbone/' in n}
  for name, leaf in loaded.items():
    wanted = own if name in names else before
    np.testing.assert_array_equal(leaf, wanted[name])
  assert not any(x.any() for x in before.values())


def test_modules_that_a_variant_inserts_keep_their_values(saved):
  path, own = saved
  before = variables(variant='snr')
  loaded, names = weights.load(str(path), before)
  new = [n for n in before if '/backbone/' in n and n not in names]
  assert new
  for name in new:
    np.testing.assert_array_equal(loaded[name], before[name])
  for name in names:
    np.testing.assert_array_equal(loaded[name], own[name])


def test_infrared_stages_start_from_the_visible_ones(tmp_path):
  fields = {'name': 'resnet18', 'width': 1 / 32}
  path, own = tmp_path / 'toy.safetensors', variables(**fields)
  weights.save(path, own, ABOUT)
  before = variables(**fields, modality_specific_stages=1)
  loaded, _ = weights.load(str(path), before)
  both = [n for n in before if '/infrared_' in n]
  assert both
  for name in both:
    visible = own[name.replace('/infrared_', '/')]
    np.testing.assert_array_equal(loaded[name], visible)


def test_another_network_is_refused_with_the_fields_of_the_card(saved):
  path, _ = saved
  for fields in ({'features': (6, 8)}, {'features': (8,)}):
    with pytest.raises(errors.IntegrityError, match=r"model.name='convnet'"):
      weights.load(str(path), variables(**fields))


@pytest.mark.parametrize(
  'saved_fields, fields, missing',
  [
    ({}, {'features': (4, 6, 8)}, 'bn3/mean'),
    (
      {'name': 'resnet18', 'width': 1 / 32},
      {'name': 'resnet34', 'width': 1 / 32},
      'layer1_2/bn1/mean',
    ),
    ({'norm': 'group'}, {}, 'bn1/mean'),
  ],
)
def test_a_file_of_a_part_of_the_network_is_refused(
  tmp_path, saved_fields, fields, missing
):
  path = tmp_path / 'small.safetensors'
  weights.save(path, variables(**saved_fields), ABOUT)
  with pytest.raises(
    errors.IntegrityError, match=f'the file has no .*{missing}'
  ):
    weights.load(str(path), variables(**fields))


def test_a_value_that_is_not_finite_is_refused(tmp_path):
  own = variables()
  leaf = next(n for n in own if n.startswith('params/backbone/'))
  own[leaf].flat[0] = np.nan
  weights.save(tmp_path / 'bad.safetensors', own, ABOUT)
  with pytest.raises(errors.IntegrityError, match='not finite'):
    weights.load(str(tmp_path / 'bad.safetensors'), variables())


def test_names_that_are_not_published():
  with pytest.raises(errors.ConfigError, match="no weights 'nothing'"):
    weights.find('nothing')
  with pytest.raises(errors.IntegrityError, match='unreadable'):
    weights.load('nothing.safetensors', {})


def test_the_world_of_the_weights_is_no_test(saved):
  path, own = saved
  weights.check_unseen(str(path), 'synthetic_v1', 0)
  weights.check_unseen(str(path), 'folder', 1000)
  weights.check_unseen(str(path), 'synthetic_v2', 1000)
  with pytest.raises(errors.ConfigError, match='world 1000 of synthetic_v1'):
    weights.check_unseen(str(path), 'synthetic_v1', 1000)
  weights.save(path, own, ABOUT | {'source': 'synthetic_v2'})
  weights.check_unseen(str(path), 'synthetic_v1', 1000)
  with pytest.raises(errors.ConfigError, match='world 1000 of synthetic_v2'):
    weights.check_unseen(str(path), 'synthetic_v2', 1000)


@pytest.mark.parametrize('name', weights.NAMES)
def test_published_weights_have_a_card_and_are_small(name):
  path = weights.find(name)
  about = weights.card(path)
  assert about['name'] == name and about['world_seed'] == 1000
  assert path.stat().st_size < 5e6
  page = path.with_suffix('.md').read_text()
  # The files were written when the command had its first name.
  recipe = about['command'].partition('configs/')[2].replace('.py', '')
  assert f'`fedreid train {recipe}`' in page and weights.settings(path) in page
  tensors = safetensors_numpy.load_file(path)
  assert all(np.isfinite(x).all() for x in tensors.values())
  assert json.dumps(about) not in page
