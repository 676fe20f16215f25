import json
from types import SimpleNamespace

import numpy as np
import pytest
import toy

from fedreid_jax.training.files import recorder
from fedreid_jax.training.reports import progress, report

NAMES = ['ash', 'birch', 'cedar', 'dogwood']
LOG = {
  'clients': np.array([0, 2, 3]),
  'valid': np.array([True, False, True]),
  'per_client': {'loss': np.array([1.5, np.nan, 2.5], np.float32)},
}


def test_metrics_of_clients_with_a_finite_update():
  assert report.client_values(LOG, NAMES) == {
    'ash': {'loss': 1.5},
    'dogwood': {'loss': 2.5},
  }
  weighted = LOG | {'weights': np.array([0.25, 0.0, 0.75], np.float32)}
  assert report.client_values(weighted, NAMES) == {
    'ash': {'loss': 1.5, 'weight': 0.25},
    'dogwood': {'loss': 2.5, 'weight': 0.75},
  }


def test_a_small_cohort_has_the_names_of_its_clients():
  timed = SimpleNamespace(late=np.array([1]))
  weights = np.array([0.25, 0.0, 0.75], np.float32)
  log = LOG | {'timetable': timed, 'weights': weights}
  assert report.cohort_values(log, NAMES, 'lines') == {
    'clients': ['ash', 'cedar', 'dogwood'],
    'excluded': ['cedar'],
    'late': ['birch'],
    'weights': [0.25, 0.0, 0.75],
  }
  assert report.cohort_values(log, NAMES, 'files') == {
    **{'num_clients': 3, 'num_excluded': 1, 'num_late': 1},
    'over_clients': {
      'loss': {'min': 1.5, 'median': 2.0, 'max': 2.5},
      'weight': {'min': 0.25, 'median': 0.5, 'max': 0.75},
    },
  }


def line_of(clients, form):
  """Returns the letters of a line on a round of a number of clients."""
  odd = np.arange(clients) % 2 > 0
  log = {
    'clients': np.arange(clients),
    'valid': odd,
    'per_client': {'loss': np.where(odd, 1.5, np.nan)},
    'weights': odd * 0.5,
    'timetable': SimpleNamespace(late=np.arange(clients)),
  }
  names = [f'{k:05d}' for k in range(clients)]
  return len(json.dumps(report.cohort_values(log, names, form)))


@pytest.mark.parametrize('form', ['files', 'summary'])
def test_the_line_of_a_large_cohort_does_not_grow(form):
  # Numbers of three digits each.
  assert line_of(200, form) == line_of(998, form) < 300
  assert line_of(998, 'lines') > 4 * line_of(200, 'lines')


@pytest.mark.parametrize(
  'target, line',
  [('park', 'on the targets'), ('validation:ash', 'on held-out')],
)
def test_the_summary_says_what_chose_the_best_round(
  tmp_path, capsys, target, line
):
  entry = {
    **{'protocol': 'market', 'direction': 'all', 'distance': 'euclidean'},
    **{'model': 'global', 'queries': 1, 'gallery': 2, 'invalid_queries': 0},
  }
  entries = [
    entry | {'target': name, 'round': round_, 'metrics': {'rank1': score}}
    for name in ('mall', target)
    for round_, score in ((0, 1.0), (1, 3.0), (2, 2.0))
  ]
  record = recorder.Recorder(tmp_path, 2)
  state = progress.Progress(evaluation=entries)
  report.print_summary(toy.toy_config(), record, state)
  out = capsys.readouterr().out
  assert f'best rounds were chosen {line}' in out
  assert 'mall' in out and 'validation:' not in out
