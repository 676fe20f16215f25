"""Boxes of persons by OpenCV's histograms of oriented gradients.

Dalal and Triggs, "Histograms of oriented gradients for human detection", CVPR
2005, with the weights of OpenCV (`getDefaultPeopleDetector`), which need no
file. The detector finds persons who stand or walk and are seen whole. It has
far more errors than a network: docs/search.md has numbers.

A window of 64 x 128 pixels is moved over the photograph in all sizes. A window
is larger than the person in it, as the training images were: boxes are made
smaller by the factors of OpenCV's sample `peopledetect`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.apps.deploy import persons
from fedreid_jax.core import plugins

WINDOW = 128  # height of the window, pixels
STRIDE = (8, 8)  # pixels between windows
BORDER = (16, 16)  # pixels that are added around the photograph
STEP = 1.05  # factor between sizes
# Left and right, top and bottom edges of the person in a window.
ACROSS, DOWN = (0.1, 0.9), (0.07, 0.87)
LOWEST = 32  # smallest height that can be asked for: four times the pixels


class Settings(NamedTuple):
  """Settings of the detector; the flags of `embed` describe them."""

  score: float = 0.75  # smallest score, 0.5 at the border of the classifier
  overlap: float = 0.4  # largest intersection over union of two persons
  height: int = 80  # of the smallest person that is searched, pixels


class Hog:
  """OpenCV's detector of people.

  Attributes:
    name: 'hog'.
    settings: as given.
  """

  name = 'hog'

  def __init__(self, settings: Settings | None = None):
    """Makes the detector.

    Raises:
      ConfigError: without OpenCV, or with one that lacks the detector.
    """
    remedy = plugins.install_command('video')
    self._cv2: Any = plugins.load_extra('cv2', '--detect=hog', remedy)
    if not hasattr(self._cv2, 'HOGDescriptor'):
      raise errors.ConfigError(
        f'OpenCV {self._cv2.__version__} has no detector of people',
        '--detect=hog',
        f'{remedy} installs a version below 5, which has it',
      )
    self.settings = settings or Settings()
    self._hog: Any = self._cv2.HOGDescriptor()
    self._hog.setSVMDetector(self._cv2.HOGDescriptor_getDefaultPeopleDetector())

  def find(self, image: Image.Image) -> list[persons.Box]:
    """Finds the persons in an RGB image, the best first.

    The score of a person is the logistic function of the margin.
    """
    # Persons of the smallest height fill a window of the enlarged photograph.
    factor = WINDOW * (DOWN[1] - DOWN[0]) / self.settings.height
    size = [round(factor * side) for side in image.size]
    # In an image smaller than the window there is no place for it.
    if size[0] < WINDOW // 2 or size[1] < WINDOW:
      return []
    pixels = np.asarray(image.resize((size[0], size[1])))
    score = min(max(self.settings.score, 1e-6), 1 - 1e-6)
    windows, margins = self._hog.detectMultiScale(
      self._cv2.cvtColor(pixels, self._cv2.COLOR_RGB2BGR),
      winStride=STRIDE,
      padding=BORDER,
      scale=STEP,
      # The margin of the least score, which is by default 0.
      hitThreshold=math.log(score / (1 - score)),
      groupThreshold=0,  # suppression follows
    )
    if not len(windows):
      return []
    scores = 1 / (1 + np.exp(-np.ravel(margins).astype(np.float64)))
    rows = np.argsort(-scores, kind='stable')
    rows = rows[scores[rows] >= self.settings.score]
    left, top, width, height = (windows[rows] / factor).T
    edges = [
      *(left + ACROSS[0] * width, top + DOWN[0] * height),
      *(left + ACROSS[1] * width, top + DOWN[1] * height),
    ]
    found = np.stack(edges, axis=1)
    kept = persons.suppress(found, self.settings.overlap)
    return persons.within(found[kept], scores[rows][kept], image)
