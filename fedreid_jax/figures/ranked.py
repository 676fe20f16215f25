"""Queries and the ten nearest images of each."""

from typing import Any

from fedreid_jax.figures import canvas, lists
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.training.loaded_run import LoadedRun

SHOWN = 10


def draw(
  run: LoadedRun, label: str, target: str = '', num: int = 8, seed: int = 0
) -> Any:
  """Draws a row per query, without images that its protocol hides.

  Args:
    run: with the model.
    label: of the run.
    target: test, '' for the first.
    num: queries, drawn at random among those with a match.
    seed: of the draw.
  """
  test = run.target(target)
  images, cameras = test.images.images(), test.images.cameras
  rows: list[list[Photo | None]] = []
  for found in lists.draw(run, target, num, seed):
    row: list[Photo | None] = [
      Photo(images[found.query], None, f'camera {cameras[found.query]}')
    ]
    pairs = zip(found.gallery[:SHOWN], found.right[:SHOWN], strict=True)
    row += [
      Photo(images[k], bool(right), f'camera {cameras[k]}')
      for k, right in pairs
    ]
    rows.append(row + [None] * (SHOWN + 1 - len(row)))
  return canvas.sheet(
    rows,
    ['query', *(str(k + 1) for k in range(SHOWN))],
    f'{label}, {test.name}: solid frame, the same person; dashed, another',
    gaps=(1,),
  )
