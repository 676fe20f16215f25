import numpy as np
import pytest

from fedreid_jax.evaluation.evaluators import modality_gap

VISIBLE, INFRARED = 0, 1


def test_a_worked_example():
  """Three persons on a line; one has no infrared image and does not count.

  Visible means 0 and 2, infrared means 4 and 8: differences -4 and -6, an
  offset of 5 and a rest of 1. The variances are 1 and 4, the spread
  sqrt(2.5).
  """
  identities = np.array([0, 0, 1, 2, 0, 1])
  modalities = np.array([0, 0, 0, 0, 1, 1])
  features = np.array([[-1.0], [1.0], [2.0], [90.0], [4.0], [8.0]])
  gap = modality_gap.measure(features, identities, modalities)
  spread = np.sqrt(2.5)
  assert gap.offset == pytest.approx(5 / spread)
  assert gap.rest == pytest.approx(1 / spread)
  assert gap.persons == 2


def random(seed, persons=400, width=16):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(persons, width))


def measure(visible, infrared, **options):
  count = len(visible)
  return modality_gap.measure(
    np.concatenate([visible, infrared]),
    np.tile(np.arange(count), 2),
    np.repeat([VISIBLE, INFRARED], count),
    **options,
  )


def test_an_offset_is_told_from_unrelated_features():
  one, other = random(0), random(1)
  same = measure(one, one)
  assert (same.offset, same.rest) == pytest.approx((0.0, 0.0))
  moved = measure(one, one + 0.75)
  spread = np.sqrt(((one - one.mean(0)) ** 2).sum(1).mean())
  assert moved.offset == pytest.approx(0.75 * 4 / spread)
  assert moved.rest == pytest.approx(0.0, abs=1e-6)
  unrelated = measure(one, other)
  assert unrelated.offset < 0.2
  assert unrelated.rest == pytest.approx(np.sqrt(2), rel=0.05)


def test_the_scale_of_all_features_changes_nothing():
  one, other = random(0), random(1)
  np.testing.assert_allclose(measure(one, other), measure(9 * one, 9 * other))


def test_lengths_do_not_count_for_the_cosine_distance():
  one = random(0)
  assert measure(one, 3 * one, unit=True).rest == pytest.approx(0.0, abs=1e-6)
  assert measure(one, 3 * one).rest > 0.5


@pytest.mark.parametrize('modality', [VISIBLE, INFRARED])
def test_one_modality_has_no_gap(modality):
  found = modality_gap.measure(
    random(0), np.arange(400), np.full(400, modality)
  )
  assert found is None
