"""Ranked lists of the queries of a test, under its protocol."""

from typing import NamedTuple

import numpy as np

from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import gallery, protocols
from fedreid_jax.training.loaded_run import LoadedRun


class Ranked(NamedTuple):
  """The list of one query, nearest first, without hidden images.

  Attributes:
    query: row of the target's images.
    gallery: rows of the target's images, int `[P]`.
    distance: not squared, or `1 - cos`, `[P]`.
    right: of the query's identity, bool `[P]`.
  """

  query: int
  gallery: np.ndarray
  distance: np.ndarray
  right: np.ndarray


def draw(run: LoadedRun, target: str, num: int, seed: int) -> list[Ranked]:
  """Ranks the gallery of a test for some queries that have a match.

  Args:
    run: with the model.
    target: test, '' for the first; of several trials the first is taken.
    num: largest number of queries, which are drawn at random.
    seed: of the draw.
  """
  test = run.target(target)
  own, trial = test.images, test.trials[0]
  config = run.config.evaluation
  rules = protocols.get(config.protocol or test.protocol or 'market')
  labels = gallery.check_labels(
    own.identities[trial.query],
    own.identities[trial.gallery],
    own.cameras[trial.query],
    own.cameras[trial.gallery],
  )
  indexed = gallery.Gallery(labels, rules)
  chosen = []
  for place in np.random.default_rng(seed).permutation(len(trial.query)):
    right, dropped = indexed.split(
      int(labels.query_ids[place]), int(labels.query_cameras[place])
    )
    if right.size and len(chosen) < num:
      chosen.append((place, right, dropped))
  chosen.sort(key=lambda c: c[0])
  features = run.ranked(own.images(), own.modalities)
  queries = trial.query[[place for place, _, _ in chosen]]
  blocks = distance_lib.squared_blocks(
    features[queries], features[trial.gallery], config.metric
  )
  rows = np.concatenate(list(blocks))
  if config.metric == 'euclidean':
    rows = np.sqrt(rows)
  found = []
  for (place, right, dropped), row in zip(chosen, rows, strict=True):
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
