"""OpenCV's detector of people on drawn persons."""

import sys
import types

import numpy as np
import pytest
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy.hog import Hog, Settings

pytest.importorskip('cv2', reason="pip install '.[video]'")

import videos

STREET = videos.walkers([(60, (180, 30, 30)), (220, (30, 60, 180))])


def test_persons_are_found_in_pixels_of_the_photograph():
  found = Hog(Settings()).find(Image.fromarray(STREET))
  assert len(found) == 2
  assert found[0].score >= found[1].score > 0.9
  for box, left in zip(sorted(found), (60, 220), strict=True):
    expected = left, 70, left + 35, 170
    np.testing.assert_allclose(box[:4], expected, atol=12)
  assert Hog(Settings(score=0.999)).find(Image.fromarray(STREET)) == []


def test_larger_persons_only():
  image = Image.fromarray(STREET)
  assert Hog(Settings()._replace(height=200)).find(image) == []


@pytest.mark.parametrize('size', [(40, 40), (400, 20), (20, 400)])
def test_photographs_without_a_place_for_a_person(size):
  assert Hog(Settings()).find(Image.new('RGB', size)) == []


@pytest.mark.parametrize(
  'module, reason',
  [
    (None, 'no cv2'),
    (
      types.SimpleNamespace(__version__='5.0.0'),
      'OpenCV 5.0.0 has no detector',
    ),
  ],
)
def test_without_the_detector_the_extra_is_named(monkeypatch, module, reason):
  monkeypatch.setitem(sys.modules, 'cv2', module)
  with pytest.raises(errors.ConfigError, match=reason) as info:
    Hog()
  assert "pip install 'fedreid_jax[video]'" in info.value.line()
