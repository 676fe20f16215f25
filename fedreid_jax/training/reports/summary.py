"""Summaries of a run as in the papers: last round and best rounds.

FedReIDBench reports the mean over the three rounds with the best global model
(journal version, section 4.2.2) and returns the best of each client's models
(Algorithm 1, line 8); L2RW's results of entities are those of the best round.
The summaries are

  last        every model in the last evaluated round;
  best_three  the global model: the mean over the three rounds with the largest
              mean rank-1 over all targets, or over the benchmark's four large
              sets (`JUDGES`) where any of them is among the targets;
  best        the global model in the best round by the same mean; a client's
              own model (federated or alone), target by target, in the round
              in which it has the largest rank-1 there.

For classification, accuracy replaces rank-1. Tests on held-out persons of the
clients (`evaluation.validation`) choose the rounds where there are any. Without
them `best_three` and `best` choose rounds by test results, which favours runs
that are evaluated more often: only the last round is then an unbiased result.
Every summary states how its rounds were chosen.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from fedreid_jax.data import validation

BEST = {'best_three': 3, 'best': 1}  # rounds of each kind
FIRST = ('rank1', 'accuracy', 'mAP')  # metrics that judge rounds, by priority
JUDGES = ('market1501', 'dukemtmc', 'cuhk03-np', 'msmt17')

Entry = dict[str, Any]


def score(metrics: dict[str, float]) -> float:
  """Returns the score of a checkpoint: mAP, else accuracy."""
  return metrics['mAP'] if 'mAP' in metrics else metrics['accuracy']


def summarise(evaluation: list[Entry]) -> list[Entry]:
  """Returns one element per target, model and kind: 'last' or one of BEST.

  Args:
    evaluation: as in results.json; evaluations before training count only if
      there are no others.

  Returns:
    Elements with `target`, `model`, `kind` ('last', 'best_three' or 'best'),
    the `rounds` that were averaged, what they were `chosen_on` ('targets',
    'validation', or '' for the last round), and `metrics`.
  """
  after = [e for e in evaluation if e['round'] > 0] or evaluation
  if not after:
    return []
  last = max(e['round'] for e in after)
  found = _mean_over(after, [last], 'last', '')
  served = [e for e in after if e['model'] == 'global']
  for kind, number in BEST.items():
    best = _best_rounds(_judges(served), number)
    if best:
      found += _mean_over(served, best, kind, chosen_on(served))
  return found + _best_of_clients(after)


def checkpoint_score(entries: list[Entry]) -> float | None:
  """Returns the score that chooses the best checkpoint, None without entries.

  It is the mean of mAP (or accuracy) over the tests on held-out persons, else
  over the targets, of the models of the server, else of the clients.
  """
  judges = _judges(entries)
  served = [e for e in judges if not e['model'].startswith('client:')]
  scores = [score(e['metrics']) for e in served or judges]
  return float(np.mean(scores)) if scores else None


def chosen_on(entries: list[Entry]) -> str:
  """Returns the tests that choose rounds: 'validation', or else 'targets'."""
  held_out = any(validation.is_validation(e['target']) for e in entries)
  return 'validation' if held_out else 'targets'


def _judges(entries: list[Entry]) -> list[Entry]:
  """Returns the entries that choose rounds."""
  own = [e for e in entries if validation.is_validation(e['target'])]
  return own or entries


def _best_of_clients(entries: list[Entry]) -> list[Entry]:
  """Returns the best round of each client's own model on each target.

  Held-out persons choose one round of a model for all targets.
  """
  own: dict[tuple[str, str], list[Entry]] = defaultdict(list)
  for entry in entries:
    if entry['model'].startswith('client:'):
      own[entry['target'], entry['model']].append(entry)
  found = []
  for (_, model), rounds in sorted(own.items()):
    same = [e for e in entries if e['model'] == model]
    by = chosen_on(same)
    best = _best_rounds(_judges(same) if by == 'validation' else rounds, 1)
    found += _mean_over(rounds, best, 'best', by)
  return found


def _judged_by(metrics: dict[str, float]) -> float:
  return next(metrics[name] for name in FIRST if name in metrics)


def _best_rounds(entries: list[Entry], number: int) -> list[int]:
  judged = any(entry['target'] in JUDGES for entry in entries)
  by_round: dict[int, list[float]] = defaultdict(list)
  for entry in entries:
    if entry['target'] in JUDGES or not judged:
      by_round[entry['round']].append(_judged_by(entry['metrics']))
  means = {r: float(np.mean(values)) for r, values in by_round.items()}
  return sorted(sorted(means, key=lambda r: (-means[r], r))[:number])


def _mean_over(entries: list[Entry], rounds: list[int], kind: str, by: str):
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
      'chosen_on': by,
      'metrics': {
        name: float(np.mean([e['metrics'][name] for e in same]))
        for name in same[0]['metrics']
        if not name.endswith('_std')
      },
    }
    for (target, model), same in sorted(chosen.items())
  ]
