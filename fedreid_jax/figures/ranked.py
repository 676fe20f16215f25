"""Queries and the ten nearest images of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax.figures import canvas, lists
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.training.loaded_run import LoadedRun

SHOWN = 10


def draw(
  run: LoadedRun,
  label: str,
  target: str = '',
  num: int = 8,
  seed: int = 0,
  places: Sequence[int] | None = None,
) -> Any:
  """Draws a row per query, without images that the protocol hides.

  Args:
    run: run with the model.
    label: label of the run.
    target: name of the test, '' for the first.
    num: number of queries, drawn at random among those with a match.
    seed: random seed of the queries.
    places: numbers of the queries, instead of a draw.
  """
  test = run.target(target)
  images, views = test.images.images(), captions(test.images.cameras)
  rows: list[list[Photo | None]] = []
  for found in lists.draw(run, target, num, seed, places):
    row: list[Photo | None] = [
      Photo(images[found.query], None, views[found.query])
    ]
    pairs = zip(found.gallery[:SHOWN], found.right[:SHOWN], strict=True)
    row += [Photo(images[k], bool(right), views[k]) for k, right in pairs]
    rows.append(row + [None] * (SHOWN + 1 - len(row)))
  return canvas.sheet(
    rows,
    ['query', *(str(k + 1) for k in range(SHOWN))],
    f'{label}, {test.name}: solid frame, the same person; dashed, another',
    gaps=(1,),
  )


def captions(cameras: np.ndarray) -> list[str]:
  """Returns names of the cameras `[M]`, '' for a target without cameras."""
  # A target without cameras has the numbers of its images as cameras.
  if len(np.unique(cameras)) == len(cameras):
    return [''] * len(cameras)
  return [f'camera {camera}' for camera in cameras.tolist()]
