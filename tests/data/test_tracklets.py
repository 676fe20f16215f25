"""Tracklets as units of batches and of tests."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData, Plan
from fedreid_jax.data import client_split, federation, sampling, tracklets
from fedreid_jax.data.federation import Images
from fedreid_jax.data.sampling import Local

# Tracklets of 5, 2, 8 and 3 frames.
NUMBERS = np.repeat([7, 9, 4, 5], [5, 2, 8, 3]).astype(np.int32)
PEOPLE = np.repeat([0, 0, 1, 1], [5, 2, 8, 3]).astype(np.int32)
KINDS = np.repeat([0, 1, 0, 1], [5, 2, 8, 3]).astype(np.int32)


def client(**changes):
  size = len(NUMBERS)
  made = ClientData(
    'a',
    lambda: np.zeros((size, 4, 2, 3), np.uint8),
    PEOPLE,
    np.arange(size, dtype=np.int32) // 5,
    KINDS,
    2,
    tracklets=NUMBERS,
  )
  return made._replace(**changes)


def test_spans_and_units():
  own, spans = tracklets.units(client())
  assert spans.first.tolist() == [0, 5, 7, 15]
  assert spans.size.tolist() == [5, 2, 8, 3]
  assert own.labels.tolist() == [0, 0, 1, 1] and own.num_images == 4
  assert own.modalities.tolist() == [0, 1, 0, 1]
  with pytest.raises(errors.InternalError, match='apart'):
    tracklets.spans(np.array([1, 2, 1]))


def test_images_without_tracklets_are_refused():
  with pytest.raises(errors.DataError, match='no tracklets') as caught:
    sampling.make(Local(frames=2), [client(tracklets=None)], 0)
  assert 'client a' in caught.value.line()


def test_restricted_random_frames_by_hand():
  """Eight frames in three parts: 0-1, 2-4, 5-7."""

  class Drawn(np.random.Generator):
    def __new__(cls, values):
      return super().__new__(cls)

    def __init__(self, values):
      super().__init__(np.random.PCG64(0))
      self.values = values

    def random(self, shape):
      return np.asarray(self.values, float).reshape(shape)

  spans = tracklets.spans(NUMBERS)
  plan = Plan(np.array([[2]], np.int32), np.array([[True]]))
  for draws, wanted in (
    ([0, 0, 0], [7, 9, 12]),
    ([0.99, 0.99, 0.99], [8, 11, 14]),
    ([0.5, 0.34, 0.67], [8, 10, 14]),
  ):
    found = tracklets.with_frames(Drawn(draws), plan, spans, 3)
    assert found.rows.tolist() == [wanted]
  # Two frames, drawn three times, in the order of time.
  plan = plan._replace(rows=np.array([[1]], np.int32))
  found = tracklets.with_frames(Drawn([0.9, 0.1, 0.6]), plan, spans, 3)
  assert found.rows.tolist() == [[5, 6, 6]]
  # As many frames as parts: each once, in order.
  plan = plan._replace(rows=np.array([[3]], np.int32))
  found = tracklets.with_frames(Drawn([0.9, 0.1, 0.6]), plan, spans, 3)
  assert found.rows.tolist() == [[15, 16, 17]]


@pytest.mark.parametrize('sampler', sorted(sampling.SAMPLERS))
def test_every_sampler_draws_whole_tracklets(sampler):
  if sampler.startswith('poisson'):
    return
  local = Local(sampler=sampler, batch=12, identities=2, frames=3, steps=40)
  planner, (steps, width), _ = sampling.make(local, [client()], 3)
  assert width == 12 * 3
  plan = planner(0, 0)
  assert plan.rows.shape == plan.valid.shape == (steps, width)
  rows = plan.rows.reshape(-1, 3)
  valid = plan.valid.reshape(-1, 3)
  assert (valid.all(axis=1) == valid.any(axis=1)).all()
  rows = rows[valid[:, 0]]
  assert (NUMBERS[rows] == NUMBERS[rows[:, :1]]).all()
  assert (np.diff(rows, axis=1) >= 0).all()
  # Frames differ if the tracklet has enough of them.
  long = np.isin(NUMBERS[rows[:, 0]], (7, 4, 5))
  assert (np.diff(rows[long], axis=1) > 0).all()
  assert {*rows.ravel().tolist()} == {*range(len(NUMBERS))}


def test_one_frame_is_the_plan_without_tracklets():
  for sampler in sorted(sampling.SAMPLERS):
    local = Local(sampler=sampler, batch=12, identities=2)
    mine, shape, padded = sampling.make(local, [client()], 5)
    plain, *theirs = sampling.make(local, [client(tracklets=None)], 5)
    assert [shape, padded] == theirs
    for one, two in zip(mine(1, 0), plain(1, 0), strict=True):
      np.testing.assert_array_equal(one, two)


def test_pooled_features_are_means():
  rng = np.random.default_rng(0)
  features = rng.normal(size=(len(NUMBERS), 5)).astype(np.float32)
  found = tracklets.pooled(features, NUMBERS)
  assert found.dtype == np.float32
  for row, number in enumerate(NUMBERS):
    own = [features[k] for k in range(len(NUMBERS)) if NUMBERS[k] == number]
    np.testing.assert_allclose(found[row], sum(own) / len(own), rtol=1e-5)


def test_first_frames_stand_for_tracklets():
  rows = np.array([0, 1, 2, 7, 8, 16, 17])
  found = tracklets.representatives(rows, NUMBERS)
  assert found.tolist() == [0, 7, 16]
  assert tracklets.representatives(rows, None) is rows


def test_a_tracklet_is_a_query_as_a_whole():
  size = len(NUMBERS)
  zeros = np.zeros(size, np.int32)
  domain = Images('d', lambda: zeros, PEOPLE, zeros, KINDS, NUMBERS)
  asks = np.arange(size) == 6
  (trial,) = federation.split_target(domain, asks).trials
  assert trial.query.tolist() == [5]
  assert trial.gallery.tolist() == [0, 7, 15]


def test_clients_of_cameras_keep_tracklets_and_merged_ones_are_renumbered():
  size = len(NUMBERS)
  cameras = np.repeat([1, 2, 1, 2], [5, 2, 8, 3]).astype(np.int32)
  pixels = np.arange(size, dtype=np.uint8)[:, None, None, None]
  domain = Images('d', lambda: pixels, PEOPLE, cameras, KINDS, NUMBERS)
  given = dict(seed=0, num_clients=2, concentration=1.0)
  one, two = client_split.make_clients([domain], 'camera_independent', **given)
  assert one.tracklets.tolist() == [7] * 5 + [4] * 8
  assert two.tracklets.tolist() == [9] * 2 + [5] * 3
  (merged,) = client_split.make_clients(
    [domain, domain._replace(name='e')], 'entity_shared', **given
  )
  assert len(tracklets.spans(merged.tracklets).first) == 8
  (mixed,) = client_split.make_clients(
    [domain, domain._replace(name='e', tracklets=None)],
    'entity_shared',
    **given,
  )
  assert mixed.tracklets is None
