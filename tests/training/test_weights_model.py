"""Weights that are used without a run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import weight_files
from safetensors import numpy as safetensors_numpy

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.config import load, validation
from fedreid_jax.models import networks, weights
from fedreid_jax.models.weights import zoo
from fedreid_jax.training import build, model_card

SIZE = {'data.height': 64, 'data.width': 32}


def pixels(height, width):
  drawn = np.random.default_rng(0).integers(0, 256, (2, height, width, 3))
  return drawn.astype(np.uint8)


def outputs(config, variables, images):
  """What a network computes from pixels, without the package's view of them."""
  normal = (images / 255 - config.data.mean) / config.data.std
  model = build.network(config, 1, images.shape[1:])
  leaves = {n: jnp.asarray(x) for n, x in variables.items()}
  apply = jax.jit(lambda x: model.apply(leaves, x, train=False)[0])
  return apply(jnp.float32(normal))


def test_published_weights_give_the_pooled_feature():
  model = fr.load('weights:convnet-synthetic')
  assert (model.title, model.step) == ('weights convnet-synthetic', 0)
  assert len(model.digest) == 64
  images = pixels(64, 32)
  kept = weights.load('convnet-synthetic', model.variables)[0]
  wanted = outputs(model.config, kept, images).feature
  np.testing.assert_allclose(model.embed(images), wanted, atol=1e-4)


@pytest.mark.parametrize('name', weights.NAMES)
def test_the_page_of_weights_is_made_from_their_card(name):
  path = weights.find(name)
  assert path.with_suffix('.md').read_text() == zoo.page(path)


def test_the_zoo_is_made_from_the_cards():
  page = weights.FOLDER.parents[2] / 'docs' / 'zoo.md'
  assert page.read_text() == zoo.markdown(), (
    'run python -m fedreid_jax.models.weights.zoo > docs/zoo.md'
  )


@pytest.fixture
def small():
  """The configuration of a small network, and its variables."""
  fields = {
    'name': 'small',
    'model.neck': 'bnneck',
    'data.channels': 'rgb',
    'data.mean': (0.5, 0.4, 0.3),
    'data.std': (0.25, 0.2, 0.3),
  }
  config = toy.replaced(toy.toy_config(), fields)
  shape = config.data.height, config.data.width, 3
  model = networks.wrap(networks.build(config.model, 1), shape)
  rng = np.random.default_rng(0)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return config, {
    n: rng.uniform(0.5, 1, x.shape).astype(np.float32)
    for n, x in shapes.items()
  }


def test_float16_with_a_neck_is_read_as_float32(small, tmp_path):
  config, variables = small
  path = tmp_path / 'half.safetensors'
  about = model_card.of(config) | {'name': 'half'}
  parts = f'{weights.BACKBONE}|{weights.NECK}'
  weights.save(path, variables, about, parts, np.float16)
  assert {x.dtype for x in safetensors_numpy.load_file(path).values()} == {
    np.dtype(np.float16)
  }
  model = fr.load(f'weights:{path}')
  rounded = {
    n: x.astype(np.float16).astype(np.float32) for n, x in variables.items()
  }
  images = pixels(config.data.height, config.data.width)
  wanted = outputs(config, rounded, images).embedding
  np.testing.assert_allclose(model.embed(images), wanted, rtol=1e-4)
  kept = {n for n in variables if '/classifier/' not in n}
  assert all(model.variables[n].dtype == np.float32 for n in kept)
  assert model.notes == ()
  variables['params/neck/bn/bias'][0] = 1e6
  with pytest.raises(errors.IntegrityError, match='float16 cannot hold'):
    weights.save(path, variables, about, parts, np.float16)


def test_a_file_without_the_neck_of_its_card(small, tmp_path):
  config, variables = small
  path = tmp_path / 'plain.safetensors'
  weights.save(path, variables, model_card.of(config))
  model = fr.load(f'weights:{path}')
  assert model.notes == (
    'the file has no neck: a vector is the pooled feature',
  )
  images = pixels(config.data.height, config.data.width)
  wanted = outputs(config, variables, images).feature
  np.testing.assert_allclose(model.embed(images), wanted, rtol=1e-4)


def test_a_file_of_another_program_says_its_network(tmp_path):
  made = weight_files.made('torchreid')
  path = tmp_path / 'theirs.safetensors'
  safetensors_numpy.save_file(made.state, path)
  with pytest.raises(errors.ConfigError, match='data.height and data.width'):
    fr.load(f'weights:{path}')
  model = fr.load(f'weights:{path}', overrides=SIZE)
  assert made.settings in model.notes[0]
  assert (model.config.data.height, model.config.model.neck) == (64, 'none')
  # No rendered world is refused because of such a file.
  card = model_card.of(model.config)
  assert 'world_seed' not in card
  assert model_card.configuration({**card, 'name': 'a'}, path) is not None
  images = pixels(64, 32)
  wanted = outputs(model.config, model.variables, images).feature
  np.testing.assert_allclose(model.embed(images), wanted, atol=1e-4)


def test_a_file_that_lacks_a_part_of_the_network(tmp_path):
  made = weight_files.made('fast-reid')
  path = tmp_path / 'theirs.safetensors'
  safetensors_numpy.save_file(made.state, path)
  fields = SIZE | {'components': ('fedpav', 'snr')}
  with pytest.raises(errors.IntegrityError, match='the file has no params/'):
    fr.load(f'weights:{path}', overrides=fields)


@pytest.mark.parametrize(
  'change, error, message',
  [
    ({'model': 3}, errors.IntegrityError, 'card is not complete'),
    ({'model': {'name': 'x.y'}}, errors.ConfigError, 'x.y'),
    ({'preprocessing': {}}, errors.IntegrityError, "KeyError: 'height'"),
    ({'options': {'vit': {'x': 1}}}, errors.IntegrityError, 'unknown vit.x'),
    ({'components': ['os']}, errors.IntegrityError, "component 'os'"),
  ],
)
def test_a_damaged_card_is_one_line(change, error, message, small, tmp_path):
  config, variables = small
  path = tmp_path / 'bad.safetensors'
  weights.save(path, variables, model_card.of(config) | change)
  with pytest.raises(error, match=message) as caught:
    fr.load(f'weights:{path}')
  assert '\n' not in caught.value.line()


def test_wrong_names_are_one_line(tmp_path):
  with pytest.raises(errors.ConfigError, match="no weights 'nothing'"):
    fr.load('weights:nothing')
  with pytest.raises(errors.IntegrityError, match='no such file'):
    fr.load(f'weights:{tmp_path / "gone.safetensors"}')
  (tmp_path / 'w.pth').write_bytes(b'x')
  with pytest.raises(errors.IntegrityError, match='import-weights'):
    fr.load(f'weights:{tmp_path / "w.pth"}')
  (tmp_path / 'w.safetensors').write_bytes(b'x')
  with pytest.raises(errors.IntegrityError, match='unreadable weights'):
    fr.load(f'weights:{tmp_path / "w.safetensors"}')
  with pytest.raises(errors.ConfigError, match='weights are one model'):
    fr.load('weights:vit-synthetic', checkpoint='best')
  with pytest.raises(errors.ConfigError, match='evaluation.flap'):
    fr.load('weights:vit-synthetic', overrides={'evaluation.flap': True})


@pytest.mark.parametrize(
  'recipe', ['pretrain:network=vit', 'fedpav+snr', 'deen', 'dpsgd']
)
def test_a_card_is_a_configuration(recipe, tmp_path):
  config = validation.validate(load.load_config(recipe))
  card = model_card.of(config)
  made = model_card.configuration(card | {'name': 'x'}, tmp_path)
  if card['model']['norm'] == 'frozen':
    card['model']['norm'] = 'batch'
  assert model_card.of(made) == card
