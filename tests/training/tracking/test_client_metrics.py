"""Metrics of the clients of a round: in lines, in files, or summarised."""

import json

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.figures import curves
from fedreid_jax.training import callbacks
from fedreid_jax.training.files import recorder
from fedreid_jax.training.tracking import client_metrics, tracker

CLIENTS = {
  'ash': {'loss': 0.1, 'weight': 0.75},
  'birch': {'loss': 1 / 3, 'weight': 0.25},
}


def test_a_small_cohort_is_in_lines():
  assert client_metrics.form('auto', 16) == 'lines'
  assert client_metrics.form('auto', 17) == 'summary'
  assert client_metrics.form('files', 2) == 'files'
  assert client_metrics.form('lines', 10**4) == 'lines'


def test_the_summary_of_each_metric():
  clients = CLIENTS | {'cedar': {'loss': 5.0, 'weight': 0.0}}
  assert client_metrics.summary(clients) == {
    'loss': {'min': 0.1, 'median': 1 / 3, 'max': 5.0},
    'weight': {'min': 0.0, 'median': 0.25, 'max': 0.75},
  }
  assert client_metrics.summary({}) == {}


@pytest.mark.parametrize('form', ['lines', 'files', 'summary'])
def test_a_round_is_in_a_line_in_a_file_or_in_neither(tmp_path, form):
  record = recorder.Recorder(tmp_path, 3, verbose=False)
  values = {'loss': 0.2, 'seconds': 1.0, 'images_per_second': 2.0, 'lr': 0.1}
  values |= {'bytes_up': 1, 'bytes_down': 1}
  event = callbacks.Round(1, 3, values, CLIENTS, form)
  record.on_round(event)
  (line,) = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert ('by_client' in json.loads(line)) == (form == 'lines')
  assert (client_metrics.read(tmp_path, 1) == CLIENTS) == (form == 'files')
  names = tracker.of_round(event).scalars
  assert ('client/ash/loss' in names) == (form == 'lines')
  assert names['train/loss'] == 0.2


def test_files_are_columns_and_later_rounds_are_deleted(tmp_path):
  for round_ in (1, 2, 10):
    client_metrics.write(tmp_path, round_, CLIENTS)
  with np.load(tmp_path / 'client-metrics/2.npz') as saved:
    assert saved['client'].tolist() == ['ash', 'birch']
    assert saved['loss'].tolist() == [0.1, 1 / 3]
  client_metrics.rewind(tmp_path, 2)
  assert client_metrics.read(tmp_path, 10) == {}
  assert client_metrics.read(tmp_path, 2) == CLIENTS
  lines = [
    {'round': k, 'by_client': client_metrics.read(tmp_path, k)} for k in (1, 2)
  ]
  assert curves.of_clients(lines, 'loss')['birch'] == {1: 1 / 3, 2: 1 / 3}


def test_a_round_without_a_valid_client(tmp_path):
  client_metrics.write(tmp_path, 1, {})
  assert client_metrics.read(tmp_path, 1) == {}


def test_a_damaged_file_is_named(tmp_path):
  client_metrics.write(tmp_path, 1, CLIENTS)
  (tmp_path / 'client-metrics/1.npz').write_bytes(b'PK\x03\x04')
  with pytest.raises(errors.IntegrityError, match='1.npz'):
    client_metrics.read(tmp_path, 1)
