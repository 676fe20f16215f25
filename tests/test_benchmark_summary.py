"""The rows `benchmarks.summary` makes of finished runs."""

import json

import pytest

from benchmarks import summary


def entry(target, model, kind, rank1, rounds=(20,)):
  metrics = dict.fromkeys(summary.METRICS, 0.0) | {'rank1': rank1}
  return {
    'target': target,
    'model': model,
    'kind': kind,
    'rounds': list(rounds),
    'metrics': metrics,
  }


@pytest.fixture
def runs(tmp_path):
  """Two seeds of two clients, each tested on its domain, and of a stranger."""
  folders = []
  for seed in (0, 1):
    found = [
      entry('ash', 'client:ash', 'last', 10.0 + 2 * seed),
      entry('ash', 'client:ash', 'best', 30.0, (2 + seed,)),
      entry('birch', 'client:birch', 'last', 20.0),
      entry('ash', 'global', 'last', 50.0),
      entry('birch', 'global', 'last', 60.0),
      entry('mall', 'global', 'last', 90.0),
    ]
    folder = tmp_path / str(seed)
    folder.mkdir()
    config = {'seed': seed, 'data': {'sources': ['ash', 'birch']}}
    results = {
      'config': 'x',
      'method': 'fedpav',
      'seconds': {'total': 4.0},
      'summary': found,
    }
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'results.json').write_text(json.dumps(results))
    folders.append(str(folder))
  return folders


def test_rows_are_by_kind_and_means_are_of_own_domains(runs):
  rows = {
    row[2:]: [metrics['rank1'] for metrics, _ in samples]
    for (_, row), samples in summary.collect(runs).items()
  }
  assert rows['ash', 'client:ash', 'last', '20'] == [10.0, 12.0]
  # The best round is another with every seed.
  assert rows['ash', 'client:ash', 'best', ''] == [30.0, 30.0]
  assert rows['mean over 2', 'own', 'last', '20'] == [15.0, 16.0]
  assert rows['mean over 2', 'global', 'last', '20'] == [55.0, 55.0]
  assert len(rows) == 5 + 1 + 3
