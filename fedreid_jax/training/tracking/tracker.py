"""The names of the metrics of a run, and the tracker that writes them.

All trackers receive the same names:

  train/NAME                     of a round, such as train/loss, train/lr
  client/CLIENT/NAME             of a client in a round
  evaluation/TARGET/MODEL/NAME   of an evaluation, such as mAP; the model of a
                                 client is client/CLIENT
  ranked/TARGET/MODEL            picture of the ranked lists of some queries
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from jaxtyping import UInt8
from numpy import ndarray

from fedreid_jax import errors
from fedreid_jax.training import callbacks

SHOWN = 300  # letters of a tracker's own error in a message


class Measured(NamedTuple):
  """The measurements of one round or of one evaluation.

  Attributes:
    kind: 'round' or 'evaluation'; there is at most one of each per round.
    round: number of completed rounds.
    scalars: numbers by name.
    images: pictures by name.
    entries: the lines of `metrics.jsonl`, of which `scalars` has the numbers:
      one for a round, and one per target and model for an evaluation.
  """

  kind: Literal['round', 'evaluation']
  round: int
  scalars: Mapping[str, float]
  images: Mapping[str, UInt8[ndarray, 'H W 3']] = {}
  entries: tuple[Mapping[str, Any], ...] = ()


def of_round(event: callbacks.Round) -> Measured:
  """Returns the metrics of a round, with those of its clients for 'lines'."""
  scalars = _numbers(event.metrics, 'train')
  if event.form != 'lines':
    return Measured('round', event.round, scalars, entries=(event.metrics,))
  for client, metrics in event.clients.items():
    scalars |= _numbers(metrics, f'client/{client}')
  line = {**event.metrics, 'by_client': event.clients}
  return Measured('round', event.round, scalars, entries=(line,))


def of_evaluation(event: callbacks.Evaluation) -> Measured:
  """Returns the metrics and the ranked lists of an evaluation."""
  scalars: dict[str, float] = {}
  for entry in event.entries:
    model = entry['model'].replace(':', '/')
    group = f'evaluation/{entry["target"]}/{model}'
    scalars |= _numbers(entry['metrics'], group)
  images = {f'ranked/{name}': found for name, found in event.images.items()}
  entries = tuple({**entry, **entry['metrics']} for entry in event.entries)
  return Measured('evaluation', event.round, scalars, images, entries)


def _numbers(metrics: Mapping[str, Any], group: str) -> dict[str, float]:
  return {
    f'{group}/{name}': float(value)
    for name, value in metrics.items()
    if isinstance(value, int | float) and not isinstance(value, bool)
  }


class MetricWriter(Protocol):
  """Writes measurements to one place.

  A resumed run repeats the rounds after its last checkpoint. So that no
  measurement is written twice, a writer deletes the measurements of these
  rounds when it is opened, or skips the rounds that it has written already.
  """

  def write(self, measured: Measured) -> None:
    """Writes the measurements of one round or of one evaluation."""
    ...

  def close(self, error: BaseException | None) -> None:
    """Writes the remaining measurements, and ends.

    Args:
      error: exception that ends the run, None after a run without one.
    """
    ...


Open = Callable[[callbacks.Start], MetricWriter]
Warn = Callable[[int, str], None]


class Tracker(callbacks.Callback):
  """Passes the events of a run to a writer, whose failures end no run.

  An exception of the writer ends neither the run nor other trackers. It becomes
  a warning on the console and in `metrics.jsonl`, and the writer is not called
  again, not even `close`. If the run is resumed, the writer is opened again. A
  run waits for every call, so that a writer must limit their time.
  """

  def __init__(self, name: str, open_: Open, warn: Warn):
    """Opens nothing yet.

    Args:
      name: of the tracker, for the message about a failure.
      open_: returns the writer of a run that starts.
      warn: called with the round and the message of a failure.
    """
    self._name, self._open, self._warn = name, open_, warn
    self._writer: MetricWriter | None = None
    self._round = 0

  def on_start(self, event: callbacks.Start) -> None:
    """Opens the writer."""
    self._round, self._writer = event.round, None

    def opened() -> None:
      self._writer = self._open(event)

    self._guarded(opened)

  def on_round(self, event: callbacks.Round) -> None:
    """Writes the metrics of a round and of its clients."""
    self._write(of_round(event))

  def on_evaluation(self, event: callbacks.Evaluation) -> None:
    """Writes the metrics and the ranked lists of an evaluation."""
    self._write(of_evaluation(event))

  def on_end(self, event: callbacks.End) -> None:
    """Closes the writer."""
    writer, self._round = self._writer, event.round
    if writer is not None:
      self._guarded(lambda: writer.close(event.error))
      self._writer = None

  def _write(self, measured: Measured) -> None:
    writer, self._round = self._writer, measured.round
    if writer is not None:
      self._guarded(lambda: writer.write(measured))

  def _guarded(self, call: Callable[[], None]) -> None:
    """Runs a call; after an exception the writer is not called again."""
    try:
      call()
    except Exception as error:
      self._writer = None
      reason = errors.printable(f'{type(error).__name__}: {error}')[:SHOWN]
      self._warn(
        self._round,
        f'{self._name} failed, the run continues without it: {reason}',
      )
