"""Search of a gallery for an uploaded photograph, which no file stores."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax.apps.deploy.search import image_search, thumbnail
from fedreid_jax.apps.deploy.search.vectors import Folder
from fedreid_jax.data import decoder
from fedreid_jax.data.folder.folder_layout import Label
from fedreid_jax.evaluation.index import Gallery
from fedreid_jax.training.snapshot import Snapshot

KEPT = 1024  # thumbnails in memory
LARGE = 1600  # largest side of an enlarged image, pixels


class Settings(NamedTuple):
  """Settings of a search.

  Attributes:
    k: number of images to find.
    modality: of the queries, 0 visible and 1 infrared, or None.
    labels: known identities and cameras by the names of the images.
  """

  k: int
  modality: int | None
  labels: Mapping[str, Label]


class Unreadable(Exception):
  """An upload that is not a usable image.

  Attributes:
    is_image: whether its format is that of an image.
  """

  def __init__(self, reason: str, is_image: bool):
    super().__init__(reason)
    self.is_image = is_image


class Finder:
  """A gallery with the model that embeds queries.

  Several threads can call the methods.
  """

  def __init__(
    self, model: Snapshot, gallery: Gallery, folder: Folder, settings: Settings
  ):
    """Keeps a gallery and compiles the search.

    Args:
      model: model that embeds queries.
      gallery: vectors of the images, `[P, D]`, labelled with their rows.
      folder: the images, `P` of them.
      settings: settings of the search.
    """
    self._model, self._gallery, self._settings = model, gallery, settings
    self._names, self._root = folder.names, folder.root.resolve()
    self._decoder = decoder.of(model.config.data)
    # The locks bound the memory of many simultaneous requests, each of which
    # would decode a picture.
    self._one_query = threading.Lock()
    self._pictures = threading.Semaphore(os.cpu_count() or 1)
    self._thumbnail = functools.lru_cache(KEPT)(self._read)
    height, width = self._decoder.height, self._decoder.width
    shape = height, width, self._decoder.channels
    # The first search compiles, for which no user should wait.
    self._nearest(np.zeros(shape, np.uint8))

  def __len__(self) -> int:
    return len(self._names)

  def find(
    self, data: bytes, part: decoder.Part = decoder.WHOLE
  ) -> dict[str, Any]:
    """Returns the images that are nearest to an uploaded one.

    Args:
      data: bytes of an image file.
      part: part of the image that is the query, as for `decoder.decode`.

    Returns:
      Values for JSON: 'query', a URL that contains the thumbnail; 'hits', the
      nearest first, with 'row', 'name', 'distance', 'same' (whether the file
      has the bytes of the query), 'identity' and 'camera' ('' if unknown), and
      'similarity' (1 - distance) for the cosine distance; 'seconds'.

    Raises:
      Unreadable: for bytes that are not a usable image.
    """
    started = time.monotonic()
    with self._one_query:
      pixels = self._decoded(data, part)
      url = thumbnail.data_url(data, self._decoder.max_pixels, part)
      rows, distances = self._nearest(pixels)
    hits = image_search.hits(
      self._root,
      self._names,
      rows,
      distances,
      lambda path: self._has_bytes(path, data),
    )
    shown = [
      self._described(row, hit)
      for row, hit in zip(rows.tolist(), hits, strict=True)
    ]
    seconds = time.monotonic() - started
    return {'query': url, 'hits': shown, 'seconds': seconds}

  def picture(self, row: int, large: bool = False) -> bytes | None:
    """Returns the thumbnail of an image of the gallery as JPEG bytes.

    Args:
      row: row of the image, below the length of the gallery.
      large: whether its sides are up to `LARGE`; such an image is not cached.

    Returns:
      None for a file that is absent, cannot be read, or is outside the folder
      of the gallery.
    """
    with self._pictures:
      return self._read(row, LARGE) if large else self._thumbnail(row)

  def _read(self, row: int, side: int = thumbnail.SIDE) -> bytes | None:
    path = self._inside(self._root / self._names[row])
    return path and thumbnail.jpeg(path, self._decoder.max_pixels, side)

  def _inside(self, path: Path) -> Path | None:
    """Returns the resolved path of a file, None if it is outside the folder."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
      # A name with `..` or a symbolic link may lead outside.
      target = path.resolve(strict=True)
      if target.is_relative_to(self._root) and target.is_file():
        return target
    return None

  def _has_bytes(self, path: Path, data: bytes) -> bool:
    with contextlib.suppress(OSError):
      file = self._inside(path)
      return (
        file is not None
        # Most files have another size and need not be read.
        and file.stat().st_size == len(data)
        and file.read_bytes() == data
      )
    return False

  def _decoded(self, data: bytes, part: decoder.Part) -> np.ndarray:
    try:
      decoder.open_image(data, self._decoder.max_pixels).close()
    except OSError as error:
      raise Unreadable(str(error), is_image=False) from error
    except ValueError as error:
      raise Unreadable(str(error), is_image=True) from error
    try:
      return decoder.decode(data, self._decoder, part)
    except ValueError as error:
      raise Unreadable(str(error), is_image=True) from error

  def _nearest(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows, int64 `[k]`, and distances, float32 `[k]`, of an image.

    Args:
      pixels: uint8 `[H, W, ch]`.
    """
    kind = self._settings.modality
    kinds = None if kind is None else [kind]
    # A batch of the evaluation is padded and takes as long as if it were full.
    vectors = self._model.embed(pixels[None], kinds, batch=1)
    k = min(self._settings.k, len(self._gallery))
    rows, distances, _ = self._gallery.search(vectors, k)
    return rows[0], distances[0]

  def _described(self, row: int, hit: image_search.Hit) -> dict[str, Any]:
    label = self._settings.labels.get(hit.name, Label('', ''))
    found = {
      'row': row,
      'name': hit.name,
      'distance': hit.distance,
      'same': hit.same,
      'identity': label.identity,
      'camera': label.camera,
    }
    if self._gallery.metric == 'cosine':
      found['similarity'] = 1 - hit.distance
    return found
