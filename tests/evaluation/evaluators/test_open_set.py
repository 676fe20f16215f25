import numpy as np
import pytest
import toy_run

from fedreid_jax import errors
from fedreid_jax.data import federation
from fedreid_jax.evaluation.evaluators import open_set
from fedreid_jax.evaluation.options import Evaluation


def test_worked_rates():
  """Four known queries, one of which is wrong, and two strangers."""
  nearest = np.array([0.1, 0.3, 0.5, 0.2, 0.4, 0.25])
  right = np.array([True, True, True, False, False, False])
  stranger = np.array([False, False, False, False, True, True])
  found = open_set.rates(nearest, right, stranger)
  # No alarm below 0.25: only the query at 0.1 is accepted and right.
  assert found['DIR_at_FAR_1e-1'] == found['DIR_at_FAR_1e-2'] == 25.0
  assert found['DIR_at_FAR_1'] == 75.0


@pytest.mark.parametrize('seed', range(3))
def test_rates_are_the_best_threshold(seed):
  rng = np.random.default_rng(seed)
  nearest = rng.integers(0, 40, 200) / 40  # with ties
  right, stranger = rng.random(200) < 0.7, rng.random(200) < 0.4
  found = open_set.rates(nearest, right, stranger)
  for name, rate in open_set.RATES.items():
    best = 0.0
    for t in np.append(np.unique(nearest), -1.0):
      accepted = nearest <= t
      if accepted[stranger].mean() <= rate:
        best = max(best, (accepted & right)[~stranger].mean())
    assert found[f'DIR_at_FAR_{name}'] == pytest.approx(100 * best)


@pytest.mark.parametrize('value', [True, False])
def test_one_kind_of_queries_has_no_rate(value):
  with pytest.raises(errors.DataError, match='strangers'):
    open_set.rates(np.ones(3), np.ones(3, bool), np.full(3, value))


def test_strangers_leave_the_gallery():
  """Four persons on a line, two by two near each other, two cameras.

  Two of them are strangers. The gallery has the other two, and each of their
  queries is nearest to its own image.
  """
  people = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32)
  images = federation.Images(
    'mall',
    lambda: np.zeros((8, 1, 1, 3), np.uint8),
    people,
    np.repeat(np.array([0, 1], np.int32), 4),
    np.zeros(8, np.int32),
  )
  test = federation.split_target(images, np.arange(8) < 4, '')
  features = np.float32([0, 10, 20, 30, 0.1, 10.2, 20.3, 30.4])[:, None]
  model = toy_run.model_of(Evaluation(), lambda _: features)
  for seed in range(4):
    found = open_set.evaluate(model, test, open_set.Options(seed=seed))
    assert found == dict.fromkeys(
      ('DIR_at_FAR_1', 'DIR_at_FAR_1e-1', 'DIR_at_FAR_1e-2'), 100.0
    )
