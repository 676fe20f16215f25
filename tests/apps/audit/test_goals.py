import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.apps.audit.inversion import goals
from fedreid_jax.core.types import Outputs


def features(num=3, seed=3):
  return np.random.default_rng(seed).normal(size=(num, 8)).astype(np.float32)


def outputs(rows, embedding=None):
  rows = jnp.asarray(rows)
  other = rows if embedding is None else jnp.asarray(embedding)
  return Outputs(feature=rows, embedding=other, logits=rows)


@pytest.mark.parametrize('scale', [0.0, 30.0])
def test_cross_entropy_with_the_means_as_classifier(scale):
  rng = np.random.default_rng(1)
  means = rng.uniform(0, 1, (3, 8)).astype(np.float32)
  labels = np.asarray([2, 0, 1])
  goal = goals.identities(means, labels, scale=scale)
  assert (goal.name, goal.num_images) == ('identity', 3)
  feature, rows = features(), means
  if scale:
    feature = scale * feature / np.linalg.norm(feature, axis=1)[:, None]
    rows = rows / np.linalg.norm(rows, axis=1)[:, None]
  odds = np.exp((feature @ rows.T).astype(np.float64))
  picked = odds[np.arange(3), labels] / odds.sum(1)
  np.testing.assert_allclose(
    goal.loss(outputs(features())), -np.log(picked).mean(), rtol=1e-4
  )


def test_features_by_hand():
  wanted, found = features(), features(seed=6)
  goal = goals.features(wanted)
  assert (goal.name, goal.num_images) == ('feature', 3)
  gaps = np.square(found - wanted).sum(1) / np.square(wanted).sum(1)
  np.testing.assert_allclose(
    goal.loss(outputs(found)), 10 * gaps.mean(), rtol=1e-5
  )
  np.testing.assert_array_equal(goal.loss(outputs(wanted)), 0)


def test_a_feature_of_zeros_is_finite():
  goal = goals.features(np.zeros((1, 8), np.float32))
  assert np.isfinite(goal.loss(outputs(features(1))))


def test_the_space_chooses_the_features():
  both = outputs(features(seed=7), features())
  goal = goals.identities(features(), np.arange(3), 'embedding')
  same = goals.identities(features(), np.arange(3)).loss(outputs(features()))
  np.testing.assert_allclose(goal.loss(both), same)
  assert goals.features(features(), 'embedding').loss(both) == 0
  assert goals.features(features()).loss(both) > 0
