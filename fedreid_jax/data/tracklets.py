"""Tracklets: the frames of one person by one camera, as units.

The images of a domain or of a client may be frames; `tracklets` has then the
number of the tracklet of each, and the frames of a tracklet follow each other
in time. A tracklet is a unit in two places:

- In training with `local.frames` T above 1, a batch has B tracklets of T frames
  each, and the network averages the pooled features of the frames before its
  neck (`models.reid`). A tracklet of n >= T frames is cut into T parts, from
  frame `i n // T` to before frame `(i + 1) n // T`, and one frame of each is
  drawn (restricted random sampling). A shorter one is drawn from with
  replacement, and the frames are in the order of time.
- In a test all frames of a tracklet have the mean of their features, and the
  first one stands for the tracklet as a query and in the gallery. The necks
  `none`, `bn`, `bnneck` and `bottleneck` are affine in evaluation, so that the
  mean of embeddings is the embedding of the mean feature.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData, Plan


class Spans(NamedTuple):
  """The tracklets of a client, in the order of their first frames."""

  first: Int[np.ndarray, ' tracklets']  # rows of the first frames
  size: Int[np.ndarray, ' tracklets']  # numbers of frames


def spans(tracklets: Int[np.ndarray, ' M']) -> Spans:
  """Tracklets of rows whose frames follow each other.

  Raises:
    InternalError: if they do not.
  """
  starts = np.diff(tracklets, prepend=tracklets[:1] - 1) != 0
  first = np.flatnonzero(starts)
  if len(np.unique(tracklets)) != len(first):
    raise errors.InternalError(
      'frames of a tracklet are apart', 'tracklets', errors.REPORT
    )
  return Spans(first, np.diff(first, append=len(tracklets)))


def units(client: ClientData) -> tuple[ClientData, Spans]:
  """A client with a row for each tracklet, and its tracklets.

  Raises:
    DataError: for images that are no frames.
  """
  if client.tracklets is None:
    raise errors.DataError(
      'the images have no tracklets',
      f'client {client.name}',
      "set local.frames=1, or train on 'hitsz-vcm' or 'buptcampus'",
    )
  found = spans(client.tracklets)
  rows = found.first
  return client._replace(
    labels=client.labels[rows],
    cameras=client.cameras[rows],
    modalities=client.modalities[rows],
    tracklets=client.tracklets[rows],
  ), found


def with_frames(
  rng: np.random.Generator, plan: Plan, tracklets: Spans, frames: int
) -> Plan:
  """A plan of tracklets `[S, B]` as one of their frames `[S, B * frames]`.

  Args:
    plan: rows are numbers of tracklets.
    frames: frames of each, T.
  """
  size = tracklets.size[plan.rows][..., None]
  drawn = rng.random((*plan.rows.shape, frames))
  steps = np.arange(frames)
  start, stop = steps * size // frames, (steps + 1) * size // frames
  restricted = start + (drawn * (stop - start)).astype(np.int64)
  # Sorted numbers are frames in the order of time.
  repeated = (np.sort(drawn) * size).astype(np.int64)
  place = np.where(size >= frames, restricted, repeated)
  rows = tracklets.first[plan.rows][..., None] + place
  flat = len(plan.rows), -1
  return Plan(
    rows.reshape(flat).astype(np.int32), np.repeat(plan.valid, frames, axis=1)
  )


def pooled(
  features: Float[np.ndarray, 'M D'], tracklets: Int[np.ndarray, ' M']
) -> Float[np.ndarray, 'M D']:
  """Replaces the features of frames by the mean of their tracklet."""
  owner = np.unique(tracklets, return_inverse=True)[1]
  sums = np.zeros((owner.max() + 1, features.shape[1]), np.float64)
  np.add.at(sums, owner, features)
  means = sums / np.bincount(owner)[:, None]
  return means.astype(features.dtype)[owner]


def representatives(
  rows: Int[np.ndarray, ' rows'],
  tracklets: Int[np.ndarray, ' M'] | None,
) -> Int[np.ndarray, ' tracklets']:
  """Rows of the first frame of each tracklet among some rows, ascending.

  Without tracklets they are all of the rows.
  """
  if tracklets is None:
    return rows
  first = np.unique(tracklets[rows], return_index=True)[1]
  return rows[np.sort(first)]
