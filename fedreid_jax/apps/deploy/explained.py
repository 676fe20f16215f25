"""An explanation of a match for the page of `server`, as values for JSON."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedreid_jax.apps.deploy import image_search
from fedreid_jax.evaluation.explanation import Controlled, Explanation
from fedreid_jax.figures import overlay

TITLES = (
  'Why they match',
  'Control: a stranger',
  'Control: shuffled weights',
)
SUM = 'Colours, over which the constant is spread evenly, '
SUMS_WITH_ERROR = f'{SUM}and the error add up to the similarity. '
NOTES = {
  'exact': f'{SUM}add up to the similarity. ',
  'gradient': SUMS_WITH_ERROR,
  'pixels': SUMS_WITH_ERROR,
  'rollout': '',
}
RANKED = (
  'r is the rank correlation with the first pictures: the controls must look '
  'different.'
)


def describe(pixels: np.ndarray, found: Controlled) -> dict[str, Any]:
  """Describes an explanation of a query, a match and a stranger.

  Args:
    pixels: of the three images, uint8 `[3, H, W, ch]`.

  Returns:
    'way' and 'note', text; 'legend', texts by colours; 'groups', of 'title',
    'similarity' and two 'pictures', each of 'name', 'url' and 'lines'.
  """
  pair = found.pair
  groups = [
    _group(
      TITLES[0],
      ('query', 'match'),
      pixels[:2],
      pair,
      [overlay.sums(pair, side) for side in (pair.query, pair.other)],
    ),
    _group(
      TITLES[1],
      ('query', 'stranger'),
      pixels[::2],
      found.strangers,
      [[overlay.rank(found.by_stranger)], []],
    ),
    _group(
      TITLES[2],
      ('query', 'match'),
      pixels[:2],
      found.shuffled,
      [[overlay.rank(r)] for r in found.by_shuffling],
    ),
  ]
  return {
    'way': overlay.way(pair),
    'note': NOTES[pair.way] + RANKED,
    'legend': overlay.legend(pair.way),
    'groups': groups,
  }


def _group(
  title: str,
  names: Sequence[str],
  pixels: np.ndarray,
  found: Explanation,
  lines: Sequence[list[str]],
) -> dict[str, Any]:
  pictures = [
    {'name': name, 'url': image_search.array_url(picture), 'lines': own}
    for name, picture, own in zip(
      names, overlay.pair(pixels, found), lines, strict=True
    )
  ]
  similarity = f'similarity {found.similarity:.4f}'
  return {'title': title, 'similarity': similarity, 'pictures': pictures}
