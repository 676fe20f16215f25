"""Images of a gallery that are nearest to query images."""

import filecmp
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedreid_jax.evaluation.index import Gallery


class Hit(NamedTuple):
  """An image of the gallery.

  Attributes:
    name: path relative to the folder of the gallery.
    path: path of the file.
    distance: distance to the query.
    same: whether this is the file of the query, or has the same bytes.
  """

  name: str
  path: Path
  distance: float
  same: bool


class Answer(NamedTuple):
  """The images nearest to a query.

  Attributes:
    query: file of the query.
    hits: images, the nearest first.
  """

  query: Path
  hits: list[Hit]


def search(
  gallery: Gallery,
  root: Path,
  names: list[str],
  vectors: np.ndarray,
  queries: Sequence[Path],
  k: int,
  exclude_same_file: bool = False,
) -> list[Answer]:
  """Returns the k nearest images of every query, or all of a smaller gallery.

  Args:
    gallery: vectors of the images, `[P, D]`, labelled with their rows.
    root: folder of the images.
    names: paths of the images relative to `root`, `P`.
    vectors: vectors of the queries, float32 `[Q, D]`.
    queries: files of the queries, `Q`.
    k: number of images.
    exclude_same_file: whether to leave out images with the bytes of the query.
  """
  wanted = min(k, len(gallery))
  asked = min(wanted + exclude_same_file, len(gallery))

  def kept(
    query: Path, rows: np.ndarray, distances: np.ndarray
  ) -> Iterator[Hit]:
    same = functools.partial(_same, query)
    for hit in hits(root, names, rows, distances, same):
      if not (hit.same and exclude_same_file):
        yield hit

  while True:
    rows, distances, _ = gallery.search(vectors, asked)
    answers = [
      Answer(query, [*kept(query, found, near)][:wanted])
      for query, found, near in zip(queries, rows, distances, strict=True)
    ]
    if asked == len(gallery) or all(len(a.hits) == wanted for a in answers):
      return answers
    # A query has several copies in the gallery.
    asked = min(2 * asked, len(gallery))


def hits(
  root: Path,
  names: list[str],
  rows: np.ndarray,
  distances: np.ndarray,
  same: Callable[[Path], bool],
) -> Iterator[Hit]:
  """Yields the images that a search found for one query.

  Args:
    root: folder of the images.
    names: paths of the images relative to `root`, `P`.
    rows: rows of the nearest images, int64 `[k]`.
    distances: distances of these images, float32 `[k]`.
    same: whether a file has the bytes of the query.
  """
  for row, distance in zip(rows.tolist(), distances, strict=True):
    path = root / names[row]
    yield Hit(names[row], path, float(distance), same(path))


def _same(query: Path, other: Path) -> bool:
  """Returns whether two paths are one file, or have the same bytes."""
  try:
    return os.path.samefile(query, other) or filecmp.cmp(
      query, other, shallow=False
    )
  except OSError:  # the images of stored vectors may be gone
    return query.resolve() == other
