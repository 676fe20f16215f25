"""Batches of independently sampled identities and images."""

import numpy as np
import pytest
import toy

from fedreid_jax.config import schema
from fedreid_jax.data.split import poisson, sampling

STEPS = 4000


def plan_of(sampler, client, batch, identities=2, steps=STEPS, seed=0):
  config = schema.default().local
  config.update(
    {'sampler': sampler, 'batch': batch, 'identities': identities}
    | {'steps': steps}
  )
  plan, shape, masked = sampling.make(config, (client,), seed)
  assert masked and shape == (steps, 2 * batch)
  return plan(0, 0)


def included(client, plan, identities):
  """Whether each identity is in each step, bool `[S, J]`."""
  labels = np.where(plan.valid, client.labels[plan.rows], -1)
  return (labels[:, None] == np.arange(identities)[:, None]).any(axis=2)


def test_identities_are_drawn_independently_with_one_probability():
  client = toy.toy_client('one', 40, 10)
  plan = plan_of('poisson_pk', client, batch=4)
  found = included(client, plan, 10)
  rate, error = 0.2, 4 * np.sqrt(0.2 * 0.8 / STEPS)
  # Of ten identities more than four are drawn in 3 % of the steps.
  full = found.sum(axis=1) == 4
  assert 0.08 < full.mean() < 0.15
  inside = 0.2 - np.mean(found)
  assert 0 < inside < 0.01
  np.testing.assert_allclose(found.mean(axis=0), found.mean(), atol=error)
  pairs = np.cov(found, rowvar=False) / (rate * (1 - rate))
  others = pairs[~np.eye(10, dtype=bool)]
  assert np.abs(others).max() < 5 / np.sqrt(STEPS)
  steps = np.corrcoef(found[1:, 0], found[:-1, 0])[0, 1]
  assert abs(steps) < 4 / np.sqrt(STEPS)
  assert (found.sum(axis=1) == 0).mean() == pytest.approx(0.8**10, abs=0.02)


def test_without_a_limit_the_probability_is_exact():
  client = toy.toy_client('one', 16, 4)  # four places, four identities
  found = included(client, plan_of('poisson_pk', client, batch=4), 4)
  error = 4 * np.sqrt(0.25 / STEPS)
  np.testing.assert_allclose(found.mean(axis=0), 0.5, atol=error)
  assert np.abs(np.corrcoef(found, rowvar=False) - np.eye(4)).max() < 0.07


def test_those_without_a_place_are_random(monkeypatch):
  """Five of ten identities are drawn on average, for ten places and five."""
  client = toy.toy_client('one', 40, 10)
  rng = np.random.default_rng(0)
  pools = [np.flatnonzero(client.labels == j) for j in range(10)]
  plan = poisson._plan(rng, pools, STEPS, 5, 1)
  found = included(client, plan, 10)
  assert found.sum(axis=1).max() == 10
  monkeypatch.setattr(poisson, 'PLACES', 1)
  plan = poisson._plan(rng, pools, STEPS, 5, 1)
  found = included(client, plan, 10)
  assert found.sum(axis=1).max() == 5
  error = 4 * np.sqrt(0.25 / STEPS)
  np.testing.assert_allclose(found.mean(axis=0), found.mean(), atol=error)


def test_an_identity_has_k_images_that_differ_and_stands_first():
  client = toy.toy_client('one', 40, 10)
  plan = plan_of('poisson_pk', client, batch=6, steps=200)
  rows = np.where(plan.valid, plan.rows, -1).reshape(200, 4, 3)
  used = plan.valid.reshape(200, 4, 3)
  assert (used.all(axis=2) == used.any(axis=2)).all()
  count = used[..., 0].sum(axis=1)
  assert (used[..., 0] == (np.arange(4) < count[:, None])).all()
  for one in rows[used[..., 0]]:
    assert len({*one}) == 3 and len({*client.labels[one]}) == 1
  few = toy.toy_client('few', 8, 4)  # two images of each
  plan = plan_of('poisson_pk', few, batch=6, steps=20)
  assert plan.valid.any()


def test_images_are_drawn_independently():
  client = toy.toy_client('one', 20, 4)
  plan = plan_of('poisson', client, batch=5)
  counts = np.bincount(plan.rows[plan.valid], minlength=20) / STEPS
  np.testing.assert_allclose(counts, 0.25, atol=0.03)
  assert len({*plan.valid.sum(axis=1)}) > 4
