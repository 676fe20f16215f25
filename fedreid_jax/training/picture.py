"""Ranked lists as one picture, without a plotting library.

A row is a query and the images nearest to it. As in `figures.retrieval`, an
image of the same person has a solid green frame, and an image of another person
has a dashed orange frame.
"""

import numpy as np
from jaxtyping import Float, UInt8

from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import gallery
from fedreid_jax.evaluation.options import Evaluation

SHOWN = 10  # images in a list
SEED = 0  # the same queries after every round
RIGHT, WRONG = '#009E73', '#D55E00'  # Okabe and Ito, as in figures.canvas
Picture = UInt8[np.ndarray, 'height width 3']


class Pictures:
  """Pictures of the first model tested on each target, by 'TARGET/MODEL'."""

  def __init__(self, config: Evaluation, num: int):
    """Prepares pictures of `num` queries of each target."""
    self._config, self._num = config, num
    self._targets: set[str] = set()
    self.found: dict[str, Picture] = {}

  def __call__(
    self, model: str, target: Target, features: Float[np.ndarray, 'M D']
  ) -> None:
    """Draws the lists of a target once; it is the `seen` of an evaluation."""
    if target.name in self._targets:
      return
    self._targets.add(target.name)
    lists = gallery.draw_lists(features, target, self._config, self._num, SEED)
    if lists:
      name = f'{target.name}/{model.replace(":", "/")}'
      self.found[name] = draw(lists, target.images.images())


def draw(
  lists: list[gallery.Ranked], images: UInt8[np.ndarray, 'M H W ch']
) -> Picture:
  """Returns a picture with a row of photographs for each list."""
  rows = []
  for one in lists:
    photos = [framed(images[one.query], None)]
    photos += [
      framed(images[k], bool(right))
      for k, right in zip(one.gallery[:SHOWN], one.right[:SHOWN], strict=True)
    ]
    empty = np.full_like(photos[0], 255)
    rows.append(np.hstack(photos + [empty] * (SHOWN + 1 - len(photos))))
  return np.vstack(rows)


def framed(image: UInt8[np.ndarray, 'H W ch'], right: bool | None) -> Picture:
  """Adds a white margin, and a frame of its kind unless `right` is None."""
  height, width, channels = image.shape
  thick = max(1, min(height, width) // 16)
  found = np.full((height + 4 * thick, width + 4 * thick, 3), 255, np.uint8)
  if right is not None:
    frame = found[thick:-thick, thick:-thick]
    y, x = np.indices(frame.shape[:2]) // (2 * thick)
    drawn = (y + x) % 2 == 0 if not right else np.ones_like(y, bool)
    frame[drawn] = list(bytes.fromhex((RIGHT if right else WRONG)[1:]))
  inner = found[2 * thick : -2 * thick, 2 * thick : -2 * thick]
  inner[:] = np.repeat(image, 3 // channels, axis=2)
  return found
