"""Why queries of a run match: a sheet of overlays with controls."""

from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.evaluation import explanation
from fedreid_jax.evaluation.explanation import Controlled
from fedreid_jax.figures import canvas, overlay, retrieval
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.training.loaded_run import LoadedRun

TITLES = (
  *('query', 'match', 'why: query', 'why: match'),
  *('strangers:\nquery', 'strangers:\nnearest'),
  *('shuffled:\nquery', 'shuffled:\nmatch'),
)
HEIGHT = 1.7  # of a photograph, inches


def draw(
  run: LoadedRun, label: str, target: str = '', num: int = 3, seed: int = 0
) -> Any:
  """Draws a row per query: it and the nearest image of the same person.

  The row has the two photographs, their overlays, those of the query and the
  nearest stranger, and those of the pair after the weights are shuffled.

  Args:
    target: '' for the first.
    num: number of queries, drawn at random among those with a match.

  Raises:
    ConfigError: if no query has both a match and a stranger.
  """
  test, config = run.target(target), run.config.evaluation
  explain = explanation.make(
    run.model, run.transforms.test, flip=config.flip, feature=config.feature
  )
  images = test.images.images()
  rows, found = [], None
  for one in retrieval.rank(run, target, num, seed):
    if one.right.all():
      continue
    places = np.array(
      [one.query, one.gallery[one.right][0], one.gallery[~one.right][0]]
    )
    pixels = images[places]
    found = explanation.controlled(
      explain, run.variables, pixels, test.images.modalities[places]
    )
    rows.append(_row(pixels, found))
  if found is None:
    raise errors.ConfigError(
      f'no query of {test.name} has an image of its person and a stranger',
      '--target',
      'give a target of two or more persons',
    )
  figure = canvas.sheet(
    rows,
    TITLES,
    f'{label}, {test.name}: {overlay.way(found.pair)}\n'
    'controls: the query with the nearest stranger, and the pair with shuffled '
    'weights; r is the rank correlation with "why"',
    gaps=range(2, len(TITLES), 2),
    tall=HEIGHT,
  )
  canvas.legend(figure, overlay.legend(found.pair.way))
  return figure


def _row(pixels: np.ndarray, found: Controlled) -> list[Photo | None]:
  """Photographs `[3, H, W, ch]`: a query, its match and a stranger."""
  query, match, _ = pixels
  pair = found.pair
  painted = [
    *overlay.pair(pixels[:2], pair),
    *overlay.pair(pixels[::2], found.strangers),
    *overlay.pair(pixels[:2], found.shuffled),
  ]
  by_query, by_match = found.by_shuffling
  captions = [
    '\n'.join(overlay.sums(pair, pair.query)),
    '\n'.join(overlay.sums(pair, pair.other)),
    overlay.rank(found.by_stranger),
    f'similarity {found.strangers.similarity:.4f}',
    overlay.rank(by_query),
    overlay.rank(by_match),
  ]
  return [
    Photo(query),
    Photo(match, caption=f'similarity {pair.similarity:.4f}'),
    *(
      Photo(image, caption=caption)
      for image, caption in zip(painted, captions, strict=True)
    ),
  ]
