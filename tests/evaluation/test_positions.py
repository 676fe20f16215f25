"""Positions of matches, counted and sorted, against a stable argsort."""

import numpy as np
import pytest

from fedreid_jax.evaluation import positions as positions_lib


def slow_positions(distance, right, dropped):
  order = np.argsort(distance, kind='stable')
  order = order[~np.isin(order, dropped)]
  return np.flatnonzero(np.isin(order, right))


@pytest.mark.parametrize('levels', [0, 40])
@pytest.mark.parametrize('nearest', [False, True])
@pytest.mark.parametrize('number', [1, 7, 8])
def test_counted_and_sorted_matches_have_the_positions_of_an_argsort(
  monkeypatch, number, nearest, levels
):
  monkeypatch.setattr(positions_lib, 'counted_matches', lambda: 7)
  rng = np.random.default_rng(number)
  distance = rng.random(600, np.float32)
  images = rng.permutation(600)
  right, dropped = np.sort(images[:number]), images[-50:]
  if nearest:  # few distances are compared
    distance[right] *= 0.1
  if levels:
    distance = np.floor(levels * distance)
  answers = positions_lib.kept_positions(distance, right, dropped)
  expected = slow_positions(distance, right, dropped)
  np.testing.assert_array_equal(answers.positions, expected)
  kept = np.setdiff1d(np.arange(600), np.append(dropped, right))
  ties = np.count_nonzero(np.isin(distance[right], distance[kept]))
  assert answers.ties == ties


def test_the_choice_is_a_number_of_matches():
  assert positions_lib.counted_matches() > 0
