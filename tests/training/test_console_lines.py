import json

import numpy as np

from fedreid_jax.training import callbacks
from fedreid_jax.training.files import recorder
from fedreid_jax.training.reports import console_lines, report

VALUES = {
  **{'seconds': 1234.5, 'images_per_second': 98765.4, 'lr': 0.000123456},
  **{'bytes_up': 2_000_000, 'bytes_down': 1_000_000, 'loss': 12345.678},
  **{'accuracy': 99.987, 'identity': 0.5, 'fedureid_precision': 1.25},
}


def lines(**changes):
  event = callbacks.Round(100, 1000, VALUES | changes, {})
  return [*console_lines.of_round(event, True)]


def test_a_round_is_a_line_of_80_columns_and_its_figures_below():
  line, figures = lines()
  assert line == (
    'round  100/1000  1234.50 s    98765 images/s  loss 1.235e+04  '
    'accuracy 99.99  lr 0.0001235'
  )
  assert figures == '      3.0 MB  identity 0.5  fedureid_precision 1.25'
  assert len(lines(seconds=1.5, lr=0.05, loss=3.04)[0]) <= 80
  assert 'ami 12' in lines(ami=12.0)[0] and 'lr' not in lines(ami=12.0)[0]


def test_many_clients_are_a_summary():
  rows = [
    {'client': f'part{k}', 'images': 8 + k, 'identities': '-'}
    for k in range(console_lines.CLIENTS + 1)
  ]
  few, none = console_lines.clients(rows[1:])
  assert len(few) == console_lines.CLIENTS and not none
  assert few[0] == ['part1', '9', '-']
  assert console_lines.clients(rows) == (
    [['smallest', '8', '-'], ['median', '16', '-'], ['largest', '24', '-']],
    ['17 clients, which run.json lists'],
  )


def test_own_models_of_many_clients_are_a_mean():
  entries = [
    {
      **{'target': f'd{k}', 'model': f'client:c{k}', 'round': 4, 'queries': 2},
      'metrics': {'mAP': float(k)},
    }
    for k in range(console_lines.CLIENTS + 1)
  ]
  served = {'target': 'mall', 'model': 'global', 'metrics': {'mAP': 1.0}}
  assert console_lines.few([served, *entries[1:]]) == [served, *entries[1:]]
  first, mean = console_lines.few([served, *entries])
  assert first == served
  assert (mean['model'], mean['metrics']) == ('mean of 17', {'mAP': 8.0})
  assert (mean['round'], mean['queries']) == (4, 34)
  best = [
    e | {'model': f'{e["model"]}, own best', 'round': k}
    for k, e in enumerate(entries)
  ]
  assert [e['model'] for e in console_lines.few(best)] == [
    'mean of 17, own best'
  ]


def test_a_client_without_labels_has_no_figures_of_a_classifier(tmp_path):
  def log():
    return {
      **{'clients': np.arange(3), 'valid': np.array([True, True, True])},
      'metrics': {'accuracy': 20.0, 'identity': 2.0, 'loss': 3.0},
      'per_client': {
        'accuracy': np.array([10.0, 20.0, 40.0], np.float32),
        'identity': np.array([1.0, 2.0, 4.0], np.float32),
        'loss': np.array([3.0, 3.0, 3.0], np.float32),
      },
    }

  names = ['ash', 'birch', 'cedar']
  mixed = log()
  report.hide_untrained(mixed, np.array([3, 0, 1]))
  assert mixed['metrics'] == {'loss': 3.0, 'accuracy': 17.5, 'identity': 1.75}
  values = report.client_values(mixed, names)
  assert values['birch'] == {'loss': 3.0} and values['cedar']['accuracy'] == 40
  recorder.write_clients(tmp_path, 1, values)
  assert recorder.read_clients(tmp_path, 1) == values
  assert recorder.over_clients(values)['accuracy']['min'] == 10
  alone = log()
  report.hide_untrained(alone, np.zeros(3, int))
  assert alone['metrics'] == {'loss': 3.0}
  assert (
    json.dumps(report.client_values(alone, names)['ash']) == '{"loss": 3.0}'
  )
  whole = log()
  report.hide_untrained(whole, np.array([3, 1, 1]))
  assert whole['metrics'] == log()['metrics']
