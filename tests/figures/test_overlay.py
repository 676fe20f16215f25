import numpy as np
import pytest

from fedreid_jax.evaluation.explanation import Explanation, Side
from fedreid_jax.figures import overlay

BACK = 64 + 0.75 * 100  # of a grey photograph


def mixed(colour, share):
  """A part with a share of the limit, over the photograph."""
  own = np.array([*bytes.fromhex(colour[1:])])
  weight = overlay.STRONGEST * share
  return np.round((1 - weight) * BACK + weight * own)


@pytest.mark.parametrize('channels', [1, 3])
def test_colours_have_a_sign_and_both_images_one_scale(channels):
  """The constants 0.2 and -0.4 are spread over two positions each."""
  found = Explanation(
    0.7,
    'exact',
    Side(np.float32([[0.7], [-0.2]]), 0.2, 0.0),
    Side(np.float32([[0.4], [0.7]]), -0.4, 0.0),
  )
  images = np.full((2, 8, 4, channels), 100, np.uint8)
  query, other = overlay.pair(images, found)
  assert query.shape == (256, 128, 3)
  expected = [
    (query[0, 0], mixed(overlay.RAISES, 1)),
    (query[-1, -1], mixed(overlay.LOWERS, 0.1 / 0.8)),
    (other[0, 0], mixed(overlay.RAISES, 0.2 / 0.8)),
    (other[-1, -1], mixed(overlay.RAISES, 0.5 / 0.8)),
  ]
  for pixel, colour in expected:
    np.testing.assert_allclose(pixel, colour, atol=1)
  assert overlay.sums(found, found.query) == [
    *('positions +0.5000', 'constant +0.2000')
  ]


def test_no_part_colours_nothing():
  picture = overlay.paint(
    np.full((4, 2, 3), 100, np.uint8), np.zeros((1, 2)), 0.0
  )
  assert (picture == round(BACK)).all()
