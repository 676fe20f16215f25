"""The lines of metrics.jsonl, letter by letter."""

import pytest

from fedreid_jax import errors
from fedreid_jax.training import callbacks
from fedreid_jax.training.tracking import to_jsonl, tracker

ROUND = callbacks.Round(
  1, 9, {'loss': 1.5, 'clients': ['ash'], 'excluded': []}, {'ash': {'loss': 2}}
)
EVALUATION = callbacks.Evaluation(
  1,
  (
    {'round': 1, 'model': 'global', 'target': 'é', 'metrics': {'mAP': 10.0}},
    {'round': 1, 'model': 'client:ash', 'target': 'b', 'metrics': {'mAP': 0.5}},
  ),
  {},
)


def written(folder):
  writer: tracker.MetricWriter = to_jsonl.Writer(folder)
  writer.write(tracker.of_round(ROUND))
  writer.write(tracker.of_evaluation(EVALUATION))
  writer.close(None)
  return (folder / 'metrics.jsonl').read_bytes()


def test_a_line_has_the_entries_in_their_order_and_the_metrics_of_clients(
  tmp_path,
):
  assert written(tmp_path).decode('ascii').splitlines() == [
    '{"round": 1, "event": "train", "loss": 1.5, "clients": ["ash"], '
    '"excluded": [], '
    '"by_client": {"ash": {"loss": 2}}}',
    '{"round": 1, "event": "eval", "model": "global", "target": "\\u00e9", '
    '"metrics": {"mAP": 10.0}, "mAP": 10.0}',
    '{"round": 1, "event": "eval", "model": "client:ash", "target": "b", '
    '"metrics": {"mAP": 0.5}, "mAP": 0.5}',
  ]


def test_rounds_that_are_computed_again_are_dropped(tmp_path):
  lines = written(tmp_path)
  writer = to_jsonl.Writer(tmp_path)
  writer.event(2, 'warning', {'warning': 'x'})
  with writer.path.open('ab') as file:
    file.write(b'{"round": "one"}\n{"round": 3, "ev')
  assert writer.rewind(1) == [5]
  assert writer.path.read_bytes() == lines
  assert writer.rewind(0) == []
  assert writer.path.read_bytes() == b''
  assert to_jsonl.Writer(tmp_path / 'none').rewind(1) == []


def test_a_failure_is_an_error_of_the_run(tmp_path):
  (tmp_path / 'metrics.jsonl').mkdir()
  with pytest.raises(errors.ResourceError):
    to_jsonl.Writer(tmp_path).write(tracker.of_round(ROUND))
