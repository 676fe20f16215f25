import numpy as np
import pytest
import toy

from fedreid_jax.training import recorder, report

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
  report.print_summary(toy.toy_config(), record, entries)
  out = capsys.readouterr().out
  assert f'best rounds were chosen {line}' in out
  assert 'mall' in out and 'validation:' not in out
