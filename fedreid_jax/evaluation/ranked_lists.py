"""Ranked lists of the queries of a test, under its protocol.

The lists are ordered by the distance of features, also if the evaluation
re-ranks.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import gallery
from fedreid_jax.evaluation.protocol import protocols


class Ranked(NamedTuple):
  """The list of one query, nearest first, without hidden images.

  Attributes:
    query: row of the target's images.
    gallery: rows of the target's images.
    distance: Euclidean distance, not squared, or `1 - cos`.
    right: whether each image has the query's identity.
  """

  query: int
  gallery: Int[np.ndarray, ' P']
  distance: Float[np.ndarray, ' P']
  right: Bool[np.ndarray, ' P']


def draw(
  features: Float[np.ndarray, 'M D'],
  target: Target,
  config: Any,
  num: int,
  seed: int,
  places: Sequence[int] | None = None,
) -> list[Ranked]:
  """Ranks the gallery of a test for some queries that have a match.

  Args:
    features: features of the target's images.
    target: test; of several trials the first is taken.
    config: `config.evaluation`.
    num: largest number of queries, which are drawn at random.
    seed: of the draw.
    places: numbers of the queries in the trial, instead of a draw; the lists
      are in this order.
  """
  trial = target.trials[0]
  _, rules = protocols.of_target(config, target.protocol)
  labels = gallery.labels_of(target.images, trial)
  indexed = gallery.Gallery(labels, rules)
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
