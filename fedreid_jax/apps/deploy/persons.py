"""Boxes of persons in a photograph, and what finds them."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from PIL import Image

FEWEST_PIXELS = 2  # of a side of a box, as of an image


class Box(NamedTuple):
  """A person in a photograph, in its pixels."""

  left: int
  top: int
  right: int
  bottom: int
  score: float


class Finder(Protocol):
  """Finds persons in photographs.

  Attributes:
    name: of the file of a network, or of the method.
    settings: a NamedTuple of values for JSON.
  """

  name: str
  settings: Any

  def find(self, image: Image.Image) -> list[Box]:
    """The persons in an RGB image, the best first."""
    ...


class Nothing(NamedTuple):
  """No settings."""


class Whole:
  """Takes every photograph as one person."""

  name = 'whole'
  settings = Nothing()

  def find(self, image: Image.Image) -> list[Box]:
    """A box of the whole image."""
    return [Box(0, 0, image.width, image.height, 1.0)]


def within(
  edges: np.ndarray, scores: np.ndarray, image: Image.Image, height: int = 0
) -> list[Box]:
  """Boxes `[M, 4]` in whole pixels of an image, in their order.

  Boxes with sides below `FEWEST_PIXELS`, or lower than `height`, are left out.
  """
  edges = np.clip(edges, 0, [*image.size, *image.size])
  found: list[Box] = []
  for one, score in zip(np.rint(edges).astype(int), scores, strict=True):
    left, top, right, bottom = one.tolist()
    if (
      min(right - left, bottom - top) >= FEWEST_PIXELS
      and bottom - top >= height
    ):
      found.append(Box(left, top, right, bottom, float(score)))
  return found


def suppress(boxes: np.ndarray, overlap: float) -> list[int]:
  """Rows of boxes `[M, 4]`, the best first, without those that overlap.

  A box is left out if its intersection over union with a better one that is
  kept is more than `overlap` (greedy suppression, Felzenszwalb et al., "Object
  detection with discriminatively trained part-based models", IEEE Transactions
  on Pattern Analysis and Machine Intelligence 2010).
  """
  kept: list[int] = []
  for row, box in enumerate(boxes):
    if not (overlaps(box, boxes[kept]) > overlap).any():
      kept.append(row)
  return kept


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
  """Intersection over union of a box `[4]` with others `[M, 4]`, `[M]`."""
  low = np.maximum(box[:2], others[:, :2])
  high = np.minimum(box[2:], others[:, 2:])
  common = np.prod(np.maximum(high - low, 0), axis=1)
  areas = np.prod(np.maximum(others[:, 2:] - others[:, :2], 0), axis=1)
  union = np.prod(np.maximum(box[2:] - box[:2], 0)) + areas - common
  # Of two boxes without pixels nothing is common.
  return common / np.maximum(union, np.finfo(np.float64).tiny)
