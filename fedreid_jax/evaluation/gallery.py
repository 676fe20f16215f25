"""Labels of a test, and the gallery images that each query may retrieve."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from fedreid_jax import errors
from fedreid_jax.data.federation import Images, Target, Trial
from fedreid_jax.data.protocols import Protocol
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation.options import Evaluation, protocol_of

Label = int | np.integer


class Labels(NamedTuple):
  """Identity and camera of every test image."""

  query_ids: Int64[np.ndarray, ' Q']
  gallery_ids: Int64[np.ndarray, ' P']
  query_cameras: Int64[np.ndarray, ' Q']
  gallery_cameras: Int64[np.ndarray, ' P']


def check_labels(
  query_ids: Any, gallery_ids: Any, query_cameras: Any, gallery_cameras: Any
) -> Labels:
  """Labels as int64 arrays.

  A DataError is raised for an empty side, different lengths, or fractions.
  """
  given = Labels(query_ids, gallery_ids, query_cameras, gallery_cameras)
  checked = []
  for name, values in given._asdict().items():
    values = np.asarray(values)
    if values.ndim != 1 or not values.size:
      raise errors.DataError(
        f'labels of shape {values.shape}', name, 'give one label per image'
      )
    if not np.issubdtype(values.dtype, np.integer):
      raise errors.DataError(
        f'labels of type {values.dtype}', name, 'give integers'
      )
    checked.append(values.astype(np.int64))
  labels = Labels(*checked)
  for side in ('query', 'gallery'):
    ids = getattr(labels, f'{side}_ids')
    cameras = getattr(labels, f'{side}_cameras')
    if ids.shape != cameras.shape:
      raise errors.DataError(
        f'{ids.size} identities but {cameras.size} cameras',
        side,
        'give one of each per image',
      )
  return labels


def labels_of(images: Images, trial: Trial) -> Labels:
  """Labels of a trial of the images of a target."""
  people, cameras = images.identities, images.cameras
  return check_labels(
    people[trial.query],
    people[trial.gallery],
    cameras[trial.query],
    cameras[trial.gallery],
  )


class Gallery:
  """The gallery with an index of its images by identity.

  Attributes:
    by_identity: gallery images by identity, then in gallery order, `[P]`.
    codes: identities numbered densely from 0, `[P]`.
  """

  def __init__(self, labels: Labels, protocol: Protocol):
    self._protocol = protocol
    self._ids, self._cameras = labels.gallery_ids, labels.gallery_cameras
    self._hidden: dict[Label, np.ndarray] = {}
    self.by_identity = np.argsort(self._ids, kind='stable')
    self._sorted_ids = self._ids[self.by_identity]
    self.codes = np.unique(self._ids, return_inverse=True)[1]

  def split(
    self, identity: Label, camera: Label
  ) -> tuple[Int64[np.ndarray, ' R'], Int64[np.ndarray, ' dropped']]:
    """Separates the matches of a query from the images hidden from it.

    Both are indices. Matches are in gallery order; hidden images are in any
    order, each once.
    """
    own = self.by_identity[
      np.searchsorted(self._sorted_ids, identity, 'left') : np.searchsorted(
        self._sorted_ids, identity, 'right'
      )
    ]
    hidden = self._hidden_from(camera)
    own = own[~hidden[own]]
    dropped = np.flatnonzero(hidden)
    if self._protocol.same_camera:
      same = self._cameras[own] == camera
      own, dropped = own[~same], np.append(dropped, own[same])
    return own, dropped

  def _hidden_from(self, camera: Label) -> Bool[np.ndarray, ' P']:
    """Mask of the images hidden from all queries of a camera."""
    # Few cameras have many queries, so the mask is computed once per camera.
    if camera not in self._hidden:
      places = [g for q, g in self._protocol.common_places if q == camera]
      self._hidden[camera] = np.isin(self._cameras, places) | (
        self._ids == self._protocol.junk_identity
      )
    return self._hidden[camera]


class Ranked(NamedTuple):
  """The list of one query, nearest first, without hidden images."""

  query: int  # row of the target's images
  gallery: Int[np.ndarray, ' P']  # rows of the target's images
  distance: Float[np.ndarray, ' P']  # Euclidean, not squared, or `1 - cos`
  right: Bool[np.ndarray, ' P']  # whether each has the query's identity


def draw_lists(
  features: Float[np.ndarray, 'M D'],
  target: Target,
  config: Evaluation,
  num: int,
  seed: int,
  places: Sequence[int] | None = None,
) -> list[Ranked]:
  """Ranks the gallery of a test for some queries that have a match.

  The order is by the distance of features, also if the evaluation re-ranks. The
  first trial of the target is taken, and at most `num` of its queries are drawn
  at random. `places` are numbers of queries in the trial instead of a draw; the
  lists are in this order.
  """
  trial = target.trials[0]
  _, rules = protocol_of(config, target.protocol)
  labels = labels_of(target.images, trial)
  indexed = Gallery(labels, rules)
  chosen = []
  drawn = np.random.default_rng(seed).permutation(len(trial.query))
  for place in drawn if places is None else places:
    right, dropped = indexed.split(
      int(labels.query_ids[place]), int(labels.query_cameras[place])
    )
    if right.size and len(chosen) < num:
      chosen.append((place, right, dropped))
  if not chosen:
    return []
  if places is None:
    chosen.sort(key=lambda c: c[0])
  queries = trial.query[[place for place, _, _ in chosen]]
  blocks = distance_lib.squared_blocks(
    features[queries], features[trial.gallery], config.metric
  )
  rows = np.concatenate(list(blocks))
  if config.metric == 'euclidean':
    rows = np.sqrt(rows)
  found = []
  for (place, right, dropped), row in zip(chosen, rows, strict=True):
    # Ties are in gallery order, as in the evaluation.
    order = np.argsort(row, kind='stable')
    order = order[~np.isin(order, dropped)]
    found.append(
      Ranked(
        int(trial.query[place]),
        trial.gallery[order],
        row[order],
        np.isin(order, right),
      )
    )
  return found
