"""The parts of a similarity, with values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
from flax import linen as nn

from fedreid_jax.data import augment
from fedreid_jax.evaluation import explanation, features
from fedreid_jax.models import networks, reid
from fedreid_jax.models.backbones import vit


@pytest.mark.parametrize(
  'shape, cells', [((32, 16), (16, 8)), ((33, 4), (16, 2)), ((3, 2), (3, 2))]
)
def test_pixels_are_added_up_in_squares(shape, cells):
  parts = np.random.default_rng(0).normal(size=(2, *shape))
  found = explanation._cells(jnp.asarray(parts))
  assert found.shape == (2, *cells)
  # Of 33 rows in 16 cells the first cell has three, and the others have two.
  side, width = shape[0] // cells[0], shape[1] // cells[1]
  first = shape[0] - (cells[0] - 1) * side
  square = parts[1, first : first + side, width : 2 * width]
  np.testing.assert_allclose(found[1, 1, 1], square.sum(), atol=1e-5)
  np.testing.assert_allclose(found.sum(), parts.sum(), atol=1e-4)


class Pixels(nn.Module):
  """Maps that are the image, or its squares in one position."""

  pooled: bool = False

  @nn.compact
  def __call__(self, x, ctx):
    return ((x**2).mean((1, 2), keepdims=True) if self.pooled else x), {}


def plain(pixels):
  return jnp.asarray(pixels).astype(jnp.float32)


def test_parts_of_two_positions_are_those_worked_out_by_hand():
  """The mean m = (0, 1) is subtracted from means (1, 1) and (2, 0).

  f = (1, 0) and g = (2, -1), so that s = 2 / sqrt 5.
  """
  net = reid.ReIDNet(Pixels(), 1, neck_kind='bn')
  model = networks.wrap(net, (2, 1, 2))
  moments = {'mean': [0.0, 1.0], 'var': [1 - 1e-5] * 2}
  variables = model.init(jax.random.key(0)) | {
    f'batch_stats/neck/bn/{name}': jnp.asarray(value)
    for name, value in moments.items()
  }
  images = np.uint8([[[[2, 0]], [[0, 2]]], [[[0, 0]], [[4, 0]]]])
  explain = explanation.make(model, plain, flip=False, feature='embedding')
  found, root = explain(variables, images), 5**0.5
  assert found.way == 'exact'
  assert found.similarity == pytest.approx(2 / root, abs=1e-6)
  query, other = found.query, found.other
  np.testing.assert_allclose(
    query.parts[:, 0], [2 / root, -1 / root], atol=1e-6
  )
  assert query.constant == pytest.approx(1 / root, abs=1e-6)
  np.testing.assert_allclose(other.parts[:, 0], [0, 2 / root], atol=1e-6)
  assert other.constant == pytest.approx(0, abs=1e-6)
  np.testing.assert_allclose(
    query.spread[:, 0], [2.5 / root, -0.5 / root], atol=1e-6
  )


def built(fields, seed=0):
  """(model, variables, view) of a network with moments that are not trivial."""
  config = toy.replaced(toy.toy_config(), fields)
  shape = SHAPES.get(config.model.name, SHAPE)
  net = networks.build(config.model, 3)
  if config.model.name == 'convnet' and not config.model.features:
    net = net.clone(backbone=Pixels())
  model = networks.wrap(net, shape)
  variables = jax.jit(model.init)(jax.random.key(seed))
  rng = np.random.default_rng(seed)
  for name, leaf in variables.items():
    if name.rpartition('/')[2] in ('mean', 'bias', 'scale', 'var'):
      one = not name.endswith(('mean', 'bias'))
      values = 0.3 * rng.random(leaf.shape) + 0.7 * one
      variables[name] = jnp.asarray(values, jnp.float32)
  view = augment.make(config.augment, (0.5,) * 3, (0.25,) * 3).test
  return model, variables, view


def pixels(num, fields=()):
  shape = SHAPES.get(dict(fields).get('model.name'), SHAPE)
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (num, *shape), dtype=np.uint8)


def explained(fields, images, flip=False):
  """(explainer, variables, cosine of the vectors, explanation)."""
  model, variables, view = built(fields)
  ranked = {'flip': flip, 'feature': 'embedding'}
  explain = explanation.make(model, view, **ranked)
  embed = features.make_embedding(model, view, **ranked)
  vectors = np.asarray(jax.jit(embed)(variables, images[:2]), np.float64)
  cosine = vectors[0] @ vectors[1] / np.prod(np.linalg.norm(vectors, axis=1))
  return explain, variables, cosine, explain(variables, images[:2])


SHAPE = (16, 8, 3)
SHAPES = {'vit': (32, 16, 3), 'resnet18': (32, 16, 3)}
RESNET = {'model.name': 'resnet18', 'model.width': 1 / 32}
RESNET |= {'model.small_stem': True}
MAPS = {'model.features': ()}  # the maps are the pixels


@pytest.mark.usefixtures('shallow')
@pytest.mark.parametrize(
  'fields, flip, way',
  [
    ({'model.neck': 'bn'}, False, 'exact'),
    ({'model.neck': 'bnneck'}, True, 'exact'),
    (RESNET | {'model.neck': 'bn'}, True, 'exact'),
    (RESNET | {'model.neck': 'bnneck'}, False, 'exact'),
    (MAPS | {'model.neck': 'bottleneck'}, False, 'exact'),
    (MAPS | {'model.neck': 'none', 'model.pool': 'flatten'}, True, 'exact'),
    (MAPS | {'model.pool': 'gem'}, False, 'gradient'),
    (MAPS | {'model.neck': 'mapping'}, False, 'gradient'),
    (MAPS | {'model.norm': 'group'}, False, 'gradient'),
  ],
)
def test_parts_constant_and_error_add_up_to_the_similarity(fields, flip, way):
  *_, cosine, found = explained(fields, pixels(2, fields), flip)
  assert found.way == way
  assert found.similarity == pytest.approx(cosine, abs=1e-5)
  for side in (found.query, found.other):
    assert side.parts.size > 1 and np.ptp(side.parts) > 1e-4
    total = side.parts.sum(dtype=np.float64) + side.constant
    assert cosine - total == pytest.approx(side.error, abs=1e-5)
    if way == 'exact':
      assert abs(side.error) <= 1e-5
      assert side.spread.sum() == pytest.approx(cosine, abs=1e-5)


def test_parts_of_mirror_images_are_mirrored():
  images = pixels(2)
  mirrored = np.stack([images[0, :, ::-1], images[1]])
  one, other = (
    explained({}, given, flip=True)[-1] for given in (images, mirrored)
  )
  np.testing.assert_allclose(
    one.query.parts, other.query.parts[:, ::-1], atol=1e-5
  )
  assert np.abs(one.query.parts - other.query.parts).max() > 1e-3


def test_a_network_without_positions_is_explained_at_its_pixels():
  """f = mean x^2, whose gradient times x is twice f: the error is -s."""
  model = networks.wrap(
    reid.ReIDNet(Pixels(pooled=True), 1, neck_kind='none'), (3, 2, 1)
  )
  explain = explanation.make(model, plain, flip=False, feature='embedding')
  images = np.random.default_rng(0).integers(1, 9, (2, 3, 2, 1), np.uint8)
  found = explain(model.init(jax.random.key(0)), images)
  assert (found.way, found.query.parts.shape) == ('pixels', (3, 2))
  squares = images[0, ..., 0].astype(float) ** 2
  np.testing.assert_allclose(
    found.query.parts, 2 * squares / squares.sum(), rtol=1e-5
  )
  assert found.query.error == pytest.approx(-1, abs=1e-5)


def test_rollout_follows_the_attention_through_the_blocks():
  """The class token looks at patch 1, which has looked at patch 2.

  With relevance 0.2 and 0.5, patch 2 has 0.1. A prompt in the place of patch 1
  is new in the second block and passes nothing on.
  """
  first = jnp.zeros((1, 3, 3)).at[0, 1, 2].set(0.5)
  second = jnp.zeros((1, 3, 3)).at[0, 0, 1].set(0.2)
  found = explanation._flow([first, second])
  np.testing.assert_allclose(found[0, 0], [1, 0.2, 0.1], rtol=1e-6)
  found = explanation._flow([first, second], prompts=1)
  np.testing.assert_allclose(found[0, 0], [1, 0, 0])


VIT = {'model.name': 'vit', 'model.neck': 'none'}


@pytest.mark.parametrize('fields', [{}, VIT], ids=['exact', 'rollout'])
def test_the_picture_changes_with_the_pair_and_with_the_weights(
  fields, monkeypatch
):
  monkeypatch.setitem(vit.SIZES, 'tiny', vit.Size(16, 2, 2, 8))
  model, variables, view = built(fields)
  images = pixels(3, fields)
  # Attention of small random weights is almost equal at all patches.
  for name in variables:
    if name.endswith('qkv/kernel'):
      variables[name] *= 30
  embed = features.make_embedding(model, view, flip=False, feature='feature')
  mean = jax.jit(embed)(variables, images).mean(0)
  variables |= {n: mean for n in variables if n.endswith('neck/bn/mean')}
  explain = explanation.make(model, view, flip=False, feature='embedding')
  found = explanation.controlled(explain, variables, images)
  assert found.pair.way == ('rollout' if fields else 'exact')
  for correlation in (found.by_stranger, *found.by_shuffling):
    assert -1 <= correlation < 0.9
  # The control of a control: what is the same has the same picture.
  same = explanation.controlled(explain, variables, images[[0, 1, 1]])
  assert same.by_stranger == 1


def test_ranks_are_correlated():
  """Ranks 1, 2, 3, 4 and 2, 1, 3, 4: 1 - 6 * 2 / (4 * 15) = 0.8."""
  one, other = np.array([[1.0, 2], [3, 40]]), np.array([[2.0, 1], [3, 4]])
  assert explanation.correlation(one, other) == pytest.approx(0.8)
  assert np.isnan(explanation.correlation(one, 0 * one))


def test_shuffled_weights_are_the_same_numbers():
  _, variables, _ = built({})
  found = explanation.shuffled(variables)
  assert found.keys() == variables.keys()
  for name, leaf in variables.items():
    moved = name.startswith('params/') and np.ptp(leaf) > 0
    assert moved == (np.asarray(found[name]) != np.asarray(leaf)).any()
    np.testing.assert_array_equal(
      np.sort(found[name], axis=None), np.sort(leaf, axis=None)
    )
