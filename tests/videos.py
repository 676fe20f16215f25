"""Videos that are drawn for a test."""

import functools

import numpy as np
from PIL import Image, ImageDraw

SIZE = 64, 48  # width and height, pixels


def write(path, count=6, rate=10.0, draw=None):
  """Writes a video; `draw(number)` gives uint8 pixels `[H, W, 3]`.

  Without it the frame k is grey, with a value of 10 k.
  """
  import cv2

  draw = draw or (lambda k: np.full((*SIZE[::-1], 3), 10 * k, np.uint8))
  height, width, _ = draw(0).shape
  code = cv2.VideoWriter_fourcc(*'MJPG')
  out = cv2.VideoWriter(str(path), code, rate, (width, height))
  for number in range(count):
    out.write(draw(number)[:, :, ::-1])
  out.release()
  return path


def walkers(places, height=100, size=(360, 240)):
  """A street with drawn persons, uint8 `[H, W, 3]`.

  Args:
    places: (left edge, colour of the coat) of each person, pixels.
    height: of a person, pixels.
  """
  street = Image.new('RGB', size, (190, 190, 180))
  pencil, unit = ImageDraw.Draw(street), height / 8
  for left, coat in places:
    # Widths and heights of a body in eighths of its height.
    at = functools.partial(_place, left + 1.4 * unit, 70, unit)
    pencil.ellipse([*at((-0.5, 0)), *at((0.5, 1.15))], fill=(200, 160, 130))
    shoulders = (-1, 1.4), (-0.3, 1.1), (0.3, 1.1), (1, 1.4)
    coat_of = *shoulders, (1.4, 4), (-1.4, 4)
    pencil.polygon([*map(at, coat_of)], fill=coat)
    for leg in (
      ((-0.8, 4), (0.1, 4), (-0.4, 8), (-1.1, 8)),
      ((-0.1, 4), (0.8, 4), (1.1, 8), (0.4, 8)),
    ):
      pencil.polygon([*map(at, leg)], fill=(30, 30, 60))
  return np.asarray(street)


def _place(left, top, unit, point):
  return left + point[0] * unit, top + point[1] * unit
