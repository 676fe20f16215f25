"""ROC of pairs: TPR at small FPR, and the equal error rate.

The pairs are all queries with all gallery images that the protocol does not
hide from them; 'market' hides the images of the query's person by the query's
camera. A pair is accepted as the same person if its distance is at most a
threshold t:

  TPR(t)  accepted share of the pairs of the same person, FNR(t) = 1 - TPR(t)
  FPR(t)  accepted share of the pairs of different persons, TNR(t) = 1 - FPR(t)

  TPR_at_FPR_r  the largest TPR(t) of all t with FPR(t) <= r
  TNR_at_FNR_r  the largest TNR(t) of all t with FNR(t) <= r
  EER           the smallest max(FPR(t), FNR(t)) of all t

Ties: pairs at the same distance are accepted together or not at all, and no
value is interpolated. With fewer than 1 / r pairs of different persons,
`TPR_at_FPR_r` is therefore the TPR without any false positive. All pairs of a
trial have the same weight, also those of a query without a match. The distances
are those of the features also with `evaluation.rerank`.

fast-reid's `evaluate_roc` has the same pairs, counts those of different persons
as positive and selects the point whose FPR is nearest to r: its TPR@FPR=r is
`TNR_at_FNR_r` here, up to one step of the curve.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from fedreid_jax import errors
from fedreid_jax.core.options import Checked
from fedreid_jax.data.federation import Target, Trial
from fedreid_jax.evaluation import distances, gallery, means
from fedreid_jax.evaluation.features import Model
from fedreid_jax.evaluation.options import Evaluation, Every, protocol_of

RATES = {'1e-2': 1e-2, '1e-3': 1e-3, '1e-4': 1e-4}
# Distances of some pairs of the same person, and of different persons.
Pairs = tuple[Float[np.ndarray, ' same'], Float[np.ndarray, ' different']]


class Roc(NamedTuple):
  """Error rates at every distance of a pair of the same person, ascending."""

  threshold: Float[np.ndarray, ' points']  # largest accepted distance
  fpr: Float64[np.ndarray, ' points']
  fnr: Float64[np.ndarray, ' points']


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the ROC of pairs."""

  every: Every = 1


def evaluate(
  model: Model, target: Target, options: Options = Options()
) -> dict[str, float | int]:
  """Metrics above in percent, means over the trials of a target."""
  del options
  found = model.features(target)
  return means.over_trials(
    [_of_trial(model.config, target, found, own) for own in target.trials]
  )


def _of_trial(
  config: Evaluation,
  target: Target,
  found: Float[np.ndarray, 'M D'],
  trial: Trial,
) -> dict[str, float | int]:
  labels = gallery.labels_of(target.images, trial)
  _, rules = protocol_of(config, target.protocol)

  # Re-ranking scales the distances of each query differently, so that they have
  # no common threshold.
  def pairs() -> Iterator[Pairs]:
    blocks = distances.squared_blocks(
      found[trial.query], found[trial.gallery], config.metric
    )
    return split(blocks, labels, gallery.Gallery(labels, rules))

  return metrics(roc(pairs))


def split(
  blocks: Iterable[Float[np.ndarray, 'rows P']],
  labels: gallery.Labels,
  indexed: gallery.Gallery,
) -> Iterator[Pairs]:
  """Yields the distances of the pairs of the same and of different persons.

  The rows of all blocks together are the queries in order.
  """
  first = 0
  for block in blocks:
    same, valid = np.zeros(block.shape, bool), np.ones(block.shape, bool)
    for row, query in enumerate(range(first, first + len(block))):
      right, dropped = indexed.split(
        labels.query_ids[query], labels.query_cameras[query]
      )
      same[row, right], valid[row, dropped] = True, False
    yield block[same], block[valid & ~same]
    first += len(block)


def roc(pairs: Callable[[], Iterable[Pairs]]) -> Roc:
  """Exact curve of pairs that do not fit into memory.

  `pairs` yields all pairs in parts. It is called twice, since the thresholds
  follow from all pairs of the same person. A DataError is raised without a pair
  of the same person, or of different persons.
  """
  same = np.sort(np.concatenate([own for own, _ in pairs()]))
  # The true positive rate changes at no other threshold, so that these points
  # have the smallest FPR of each TPR.
  threshold = np.unique(same)
  accepted = np.searchsorted(same, threshold, 'right')
  wrongly, num_different = np.zeros(threshold.size, np.int64), 0
  for _, different in pairs():
    wrongly += np.searchsorted(np.sort(different), threshold, 'right')
    num_different += different.size
  if not same.size or not num_different:
    raise errors.DataError(
      f'{same.size} pairs of one person, {num_different} of different persons',
      'evaluation',
      'check identities and cameras',
    )
  # FNR as a quotient of counts: 1 - TPR would round, and a rate that equals r
  # could exceed it.
  return Roc(
    threshold, wrongly / num_different, (same.size - accepted) / same.size
  )


def metrics(curve: Roc) -> dict[str, float | int]:
  """`TPR_at_FPR_r` and `TNR_at_FNR_r` of `RATES` and `EER`, percent."""
  found: dict[str, float | int] = {}
  for name, rate in RATES.items():
    missed = curve.fnr[curve.fpr <= rate].min(initial=1.0)
    found[f'TPR_at_FPR_{name}'] = 100 * float(1 - missed)
  for name, rate in RATES.items():
    accepted = curve.fpr[curve.fnr <= rate].min()
    found[f'TNR_at_FNR_{name}'] = 100 * float(1 - accepted)
  found['EER'] = 100 * float(np.maximum(curve.fpr, curve.fnr).min())
  return found
