"""Networks on tracklets: features are averaged over frames before the neck."""

import dataclasses

import compiled
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.models import forward, networks
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.options import Model

TRACKLETS, FRAMES = 4, 3


def make(**changes):
  config = Model(name='convnet', features=(4, 6), neck='bnneck', bottleneck=7)
  return networks.build(dataclasses.replace(config, **changes), 5)


def images():
  size = TRACKLETS * FRAMES, 8, 8, 3
  return np.float32(np.random.default_rng(0).standard_normal(size))


def variables_of(model):
  found = compiled.init(model, images()[:2], train=False)
  rng = np.random.default_rng(1)
  # Running moments and scales that are not those of the start.
  return jax.tree.map(
    lambda x: x + np.float32(rng.uniform(0.1, 0.5, x.shape)), found
  )


def trained(model, variables, pixels, mask):
  given = {'mask': mask, 'labels': np.zeros(len(mask), np.int32)}
  outputs, _ = compiled.apply(
    model, variables, pixels, arrays=given, train=True, mutable=('batch_stats',)
  )
  return outputs


def test_features_are_averaged_before_the_neck():
  model, pixels = make(), images()
  variables = variables_of(model)
  frames = trained(model, variables, pixels, np.ones(len(pixels), bool))
  found = trained(model, variables, pixels, np.ones(TRACKLETS, bool))
  # In the order of the frames, so that a mean over other rows fails.
  means = frames.feature.reshape(TRACKLETS, FRAMES, -1).mean(1)
  np.testing.assert_allclose(found.feature, means, rtol=1e-5, atol=1e-6)
  # The neck normalises tracklets and not frames.
  own = variables['params']['neck']['bn']
  centred = means - means.mean(0)
  expected = centred / np.sqrt(means.var(0) + 1e-5) * own['scale']
  expected += own['bias']
  np.testing.assert_allclose(found.embedding, expected, rtol=2e-4, atol=2e-4)
  assert (
    np.abs(frames.embedding.reshape(4, 3, -1).mean(1) - expected).max() > 0.01
  )
  kernel = variables['params']['classifier']['kernel']
  np.testing.assert_allclose(
    found.logits, found.embedding @ kernel, rtol=1e-4, atol=1e-5
  )


def test_a_padded_tracklet_changes_nothing():
  model, pixels = make(), images()
  variables = variables_of(model)
  mask = np.array([True, True, True, False])
  found = trained(model, variables, pixels, mask)
  broken = pixels.copy()
  broken[-FRAMES:] = np.nan
  other = trained(model, variables, broken, mask)
  for one, two in zip(found[:3], other[:3], strict=True):
    np.testing.assert_array_equal(one[:3], two[:3])


def test_numbers_of_frames_follow_from_shapes():
  six = jnp.ones(6, bool)
  for ctx, number in (
    (ForwardCtx(False), 1),
    (ForwardCtx(False, six), 2),
    (ForwardCtx(True, None, None, None, six), 2),
    (ForwardCtx(True, six.repeat(2), six.repeat(2)), 1),
  ):
    assert forward.frames(jnp.zeros((12, 2, 1, 3)), ctx) == number
  ctx = forward.of_frames(ForwardCtx(True, None, jnp.arange(3)), 2)
  assert ctx.train and ctx.mask is None
  assert ctx.modalities.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize('neck', ['none', 'bn', 'bnneck', 'bottleneck'])
def test_the_mean_of_embeddings_is_the_embedding_of_the_mean(neck):
  """A test averages embeddings of frames, in any batch."""
  model, pixels = make(neck=neck), images()
  variables = variables_of(model)
  given = {'modalities': np.zeros(TRACKLETS, np.int32)}
  whole = compiled.apply(model, variables, pixels, arrays=given, train=False)
  each = compiled.apply(model, variables, pixels, arrays={}, train=False)
  means = each.embedding.reshape(TRACKLETS, FRAMES, -1).mean(1)
  assert whole.embedding.shape == means.shape
  np.testing.assert_allclose(whole.embedding, means, rtol=1e-4, atol=1e-5)


def test_modalities_of_tracklets_are_those_of_their_frames():
  model, pixels = make(name='resnet18', width=0.0625), images()
  model = model.clone(backbone=model.backbone.clone(modality_specific_stages=2))
  kinds = np.array([0, 1, 1, 0], np.int32)
  variables = variables_of(model)
  found = compiled.apply(
    model, variables, pixels, arrays={'modalities': kinds}, train=False
  )
  each = compiled.apply(
    model,
    variables,
    pixels,
    arrays={'modalities': kinds.repeat(FRAMES)},
    train=False,
  )
  means = each.feature.reshape(TRACKLETS, FRAMES, -1).mean(1)
  np.testing.assert_allclose(found.feature, means, rtol=1e-4, atol=1e-5)
