"""The papers' figures of a run: its last round, and its three best.

FedReIDBench reports the mean over the three rounds with the best global model.
As there, the three are those with the largest mean rank-1 over all targets
(where classes are tested, accuracy), and every figure is averaged over the same
three. That chooses rounds by test results: the last round is the figure to
trust, and both are labelled.
"""

from collections import defaultdict
from typing import Any

import numpy as np

BEST = 3
FIRST = ('rank1', 'accuracy', 'mAP')  # what rounds are judged by
JUDGES = ('market1501', 'dukemtmc', 'cuhk03-np', 'msmt17')

Entry = dict[str, Any]


def score(metrics: dict[str, float]) -> float:
  """Returns the figure a checkpoint is judged by: mAP, else accuracy."""
  return metrics['mAP'] if 'mAP' in metrics else metrics['accuracy']


def summarise(evaluation: list[Entry]) -> list[Entry]:
  """Returns one element a target, model and kind, 'last' or 'best_three'.

  Args:
    evaluation: as in results.json; what was measured before training counts
      only while there is nothing else.
  """
  after = [e for e in evaluation if e['round'] > 0] or evaluation
  if not after:
    return []
  last = max(e['round'] for e in after)
  found = _mean_over(after, [last], 'last')
  best = _best_rounds([e for e in after if e['model'] == 'global'])
  if best:
    served = [e for e in after if e['model'] == 'global']
    found += _mean_over(served, best, 'best_three')
  return found


def _best_rounds(entries: list[Entry]) -> list[int]:
  judged = any(entry['target'] in JUDGES for entry in entries)
  by_round: dict[int, list[float]] = defaultdict(list)
  for entry in entries:
    found = entry['metrics']
    value = next((found[n] for n in FIRST if n in found), None)
    if value is not None and (entry['target'] in JUDGES or not judged):
      by_round[entry['round']].append(value)
  means = {r: float(np.mean(values)) for r, values in by_round.items()}
  return sorted(sorted(means, key=lambda r: (-means[r], r))[:BEST])


def _mean_over(entries: list[Entry], rounds: list[int], kind: str):
  chosen: dict[tuple[str, str], list[Entry]] = defaultdict(list)
  for entry in entries:
    if entry['round'] in rounds:
      chosen[entry['target'], entry['model']].append(entry)
  return [
    {
      'target': target,
      'model': model,
      'kind': kind,
      'rounds': rounds,
      'metrics': {
        name: float(np.mean([e['metrics'][name] for e in same]))
        for name in same[0]['metrics']
        if not name.endswith('_std')
      },
    }
    for (target, model), same in sorted(chosen.items())
  ]
