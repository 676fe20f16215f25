import numpy as np
import pytest

from fedreid_jax.data.synthetic import kept, photographs

SIZES = (0, 2, 1, 1)
OPTIONS = {'height': 16, 'width': 8}


@pytest.fixture
def rendered(monkeypatch):
  """Arguments of the calls that rendered, with nothing kept before them."""
  calls = []
  real = photographs.generate

  def generate(*sizes, **options):
    calls.append((sizes, options))
    return real(*sizes, **options)

  monkeypatch.setattr(photographs, 'generate', generate)
  kept._kept.cache_clear()
  yield calls
  kept._kept.cache_clear()


def test_images_are_rendered_once(rendered):
  one = kept.images(*SIZES, **OPTIONS)
  assert kept.images(*SIZES, **OPTIONS) is one
  expected = photographs.generate(*SIZES, **OPTIONS).images
  np.testing.assert_array_equal(one, expected)
  assert len(rendered) == 2
  with pytest.raises(ValueError, match='read-only'):
    one[0] = 0


@pytest.mark.parametrize(
  'other',
  [
    {'seed': 1},
    {'modality': 'infrared'},
    {'first_identity': 1},
    {'camera_spread': 2.0},
    {'height': 24},
  ],
)
def test_other_images_are_rendered(rendered, other):
  one = kept.images(*SIZES, **OPTIONS)
  two = kept.images(*SIZES, **(OPTIONS | other))
  assert len(rendered) == 2
  assert one.shape != two.shape or (one != two).any()


def test_many_images_are_not_kept(rendered, monkeypatch):
  monkeypatch.setattr(kept, 'MAX_BYTES', 2 * 16 * 8 * 3 - 1)
  for _ in range(2):
    kept.images(*SIZES, **OPTIONS)
  assert len(rendered) == 2
