import numpy as np
import pytest

from fedreid_jax.config import schema
from fedreid_jax.data import federation
from fedreid_jax.evaluation import evaluator


@pytest.fixture
def target():
  """A query of person 0, one of person 9 that nobody answers, a gallery."""
  identities = np.array([0, 9, 1, 0, 0], np.int32)
  cameras = np.array([0, 0, 1, 1, 1], np.int32)
  images = federation.Images(
    'mall',
    lambda: np.zeros((5, 1, 1, 3), np.uint8),
    identities,
    cameras,
    np.zeros(5, np.int32),
  )
  return federation.split_target(images, np.arange(5) < 2)


# Distances of the first query to the gallery: 1, 2, 3.
FOUND = np.array([[0.0], [5.0], [1.0], [2.0], [3.0]], np.float32)


@pytest.mark.parametrize(
  'precision, expected',
  [
    ('', (1 / 2 + 2 / 3) / 2),
    ('standard', (1 / 2 + 2 / 3) / 2),
    ('trapezoid', ((0 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2) / 2),
  ],
)
def test_precision_of_each_query(target, precision, expected):
  config = schema.default().evaluation
  config.precision = precision
  entry, (per_query,) = evaluator._ranked(config, target, FOUND)
  np.testing.assert_allclose(per_query, [expected, np.nan], rtol=1e-6)
  assert entry['metrics']['mAP'] == pytest.approx(100 * expected)
  assert (entry['queries'], entry['invalid_queries']) == (2, 1)
