"""CMC, mAP and mINP of features, without a full matrix of distances."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.federation import Target
from fedreid_jax.data.protocols import Protocol
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import gallery as gallery_lib
from fedreid_jax.evaluation import means, ranking
from fedreid_jax.evaluation.features import Model
from fedreid_jax.evaluation.options import protocol_of


def evaluate(model: Model, target: Target) -> dict[str, Any]:
  """Ranks the features of a target's images, trial by trial.

  The result has the metrics of `evaluate_retrieval`, their means and `_std` of
  trials; the largest counts of a trial; and `per_query`, the average precision
  of the queries of each trial, float32 `[Q]`, NaN without a match.
  """
  config, found = model.config, model.features(target)
  _, rules = protocol_of(config, target.protocol)
  scores: list[ranking.Scores] = []
  results = [
    evaluate_retrieval(
      found[trial.query],
      found[trial.gallery],
      *gallery_lib.labels_of(target.images, trial),
      metric=config.metric,
      protocol=rules,
      ranks=tuple(config.ranks),
      rerank=config.rerank,
      keep=scores.append,
    )
    for trial in target.trials
  ]
  precision = [
    np.where(s.valid, s.precision, np.nan).astype(np.float32) for s in scores
  ]
  return means.over_trials(results) | {'per_query': precision}


def evaluate_retrieval(
  query_features: Any,
  gallery_features: Any,
  query_ids: Any,
  gallery_ids: Any,
  query_cameras: Any,
  gallery_cameras: Any,
  metric: str = 'euclidean',
  protocol: str | Protocol = 'market',
  ranks: Sequence[int] = (1, 5, 10),
  chunk: int = 256,
  rerank: bool | distance_lib.Rerank = False,
  seed: int = 0,
  keep: Callable[[ranking.Scores], None] | None = None,
) -> dict[str, float | int]:
  """Evaluates features under a test protocol, as `evaluate_ranking` does.

  Distances of `chunk` queries are computed at a time. The result does not
  depend on `chunk`, bit for bit.

  >>> import fedreid_jax as fr
  >>> query, gallery = [[0.0, 1.0]], [[0.0, 0.9], [1.0, 0.0], [0.0, 0.8]]
  >>> identities, cameras = ([0], [1, 0, 0]), ([0], [1, 1, 1])
  >>> found = fr.evaluate_retrieval(query, gallery, *identities, *cameras)
  >>> found['rank1'], found['rank5'], round(found['mAP'], 1)
  (0.0, 100.0, 58.3)

  Args:
    query_features: `[Q, D]`, on the host or a device.
    gallery_features: `[P, D]`, on the host or a device.
    query_ids: as in `evaluate_ranking`, like all labels, `protocol`, `ranks`
      and `seed`.
    metric: 'euclidean' or 'cosine' (`1 - cos`).
    chunk: queries at a time, in blocks of `distances.BLOCK` rows.
    rerank: whether to re-rank with k-reciprocal encoding, or its options.
    keep: function that receives the scores of the queries.

  Raises:
    ConfigError: for an unknown protocol or metric, a rank or chunk below 1, or
      re-ranking options out of range.
    DataError: for features and labels that do not fit, NaN features, or no
      valid query.
  """
  labels = gallery_lib.check_labels(
    query_ids, gallery_ids, query_cameras, gallery_cameras
  )
  given = (len(query_features), len(gallery_features))
  expected = (labels.query_ids.size, labels.gallery_ids.size)
  if given != expected:
    raise errors.DataError(
      f'{given[0]} query and {given[1]} gallery features',
      'evaluation',
      f'the labels need {expected[0]} and {expected[1]}',
    )
  if rerank:
    options = distance_lib.check_rerank(
      distance_lib.Rerank() if rerank is True else rerank
    )
    blocks = distance_lib.reranked_blocks(
      query_features, gallery_features, metric, chunk, options
    )
  else:
    blocks = distance_lib.squared_blocks(
      query_features, gallery_features, metric, chunk
    )
  return ranking.evaluate_blocks(blocks, labels, protocol, ranks, seed, keep)
