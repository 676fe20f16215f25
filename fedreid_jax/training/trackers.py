"""Trackers: metrics and images of a run for TensorBoard, MLflow and others.

All trackers receive the same names:

  train/NAME                     of a round, such as train/loss, train/lr
  client/CLIENT/NAME             of a client in a round
  evaluation/TARGET/MODEL/NAME   of an evaluation, such as mAP; the model of a
                                 client is client/CLIENT
  ranked/TARGET/MODEL            picture of the ranked lists of some queries
"""

import csv
import importlib
import io
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from jaxtyping import UInt8
from numpy import ndarray

from fedreid_jax import errors
from fedreid_jax.config import parsing
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import plugins
from fedreid_jax.training import callbacks
from fedreid_jax.training.files import atomic, recorder

SHOWN = 300  # letters of a tracker's own error in a message
# Files and folders in a work directory; the service names the last one.
CSV_FILE, SENT_FILE = 'metrics.csv', 'tracking.json'
TENSORBOARD_FOLDER, WANDB_FOLDER = 'tensorboard', 'wandb'
# A table with a column for each metric would have to be rewritten whenever a
# metric appears, such as those of a client that takes part for the first time.
CSV_HEADER = ('round', 'metric', 'value')
PROJECT = 'fedreid_jax'  # without MLFLOW_EXPERIMENT_NAME or WANDB_PROJECT
# MLflow's limits of a call and of the text of a parameter.
METRICS, PARAMETERS, LETTERS = 1000, 100, 500
# Seconds. Without limits a run would wait for a login to Weights & Biases, or
# at its end for a network that was lost. Measurements that were not uploaded
# stay on the disk.
LOGIN_S, FINISH_S = 60, 300


class Measured(NamedTuple):
  """The measurements of a round or an evaluation, one of each in a round."""

  kind: Literal['round', 'evaluation']
  round: int  # number of completed rounds
  scalars: Mapping[str, float]
  images: Mapping[str, UInt8[ndarray, 'H W 3']] = {}  # pictures by name


def of_round(event: callbacks.Round) -> Measured:
  """Returns the metrics of a round, with those of its clients for 'lines'."""
  scalars = _numbers(event.metrics, 'train')
  if event.form == 'lines':
    for client, metrics in event.clients.items():
      scalars |= _numbers(metrics, f'client/{client}')
  return Measured('round', event.round, scalars)


def of_evaluation(event: callbacks.Evaluation) -> Measured:
  """Returns the metrics and the ranked lists of an evaluation."""
  scalars: dict[str, float] = {}
  for entry in event.entries:
    model = entry['model'].replace(':', '/')
    group = f'evaluation/{entry["target"]}/{model}'
    scalars |= _numbers(entry['metrics'], group)
  images = {f'ranked/{name}': found for name, found in event.images.items()}
  return Measured('evaluation', event.round, scalars, images)


def _numbers(metrics: Mapping[str, Any], group: str) -> dict[str, float]:
  return {
    f'{group}/{name}': float(value)
    for name, value in metrics.items()
    if isinstance(value, int | float) and not isinstance(value, bool)
  }


class MetricWriter(Protocol):
  """Writes measurements to one place.

  A resumed run repeats the rounds after its last checkpoint. So that nothing is
  written twice, a writer deletes the measurements of these rounds when it is
  opened, or skips rounds that it has written already.
  """

  def write(self, measured: Measured) -> None:
    """Writes the measurements of one round or of one evaluation."""
    ...

  def close(self, error: BaseException | None) -> None:
    """Writes the remaining measurements; `error` is what ends the run."""
    ...


Open = Callable[[callbacks.Start], MetricWriter]
Warn = Callable[[int, str], None]


class Tracker(callbacks.Callback):
  """Passes the events of a run to a writer, whose failures end no run.

  An exception becomes a warning on the console and in `metrics.jsonl`, and the
  writer is not called again until the run is resumed, not even `close`. A run
  waits for every call, so that a writer must limit their time.
  """

  def __init__(self, name: str, open_: Open, warn: Warn):
    """Opens nothing yet; `warn` receives the round and message of a failure."""
    self._name, self._open, self._warn = name, open_, warn
    self._writer: MetricWriter | None = None
    self._round = 0

  def on_start(self, event: callbacks.Start) -> None:
    """Opens the writer."""
    self._round = event.round
    self._writer = self._guarded(lambda: self._open(event))

  def on_round(self, event: callbacks.Round) -> None:
    """Writes the metrics of a round and of its clients."""
    self._write(of_round(event))

  def on_evaluation(self, event: callbacks.Evaluation) -> None:
    """Writes the metrics and the ranked lists of an evaluation."""
    self._write(of_evaluation(event))

  def on_end(self, event: callbacks.End) -> None:
    """Closes the writer."""
    writer, self._writer, self._round = self._writer, None, event.round
    if writer is not None:
      self._guarded(lambda: writer.close(event.error))

  def _write(self, measured: Measured) -> None:
    writer, self._round = self._writer, measured.round
    if writer is not None:
      self._guarded(lambda: writer.write(measured))

  def _guarded(self, call: Callable[[], Any]) -> Any:
    """Runs a call; after an exception the writer is not called again."""
    try:
      return call()
    except Exception as error:
      self._writer = None
      reason = errors.printable(f'{type(error).__name__}: {error}')[:SHOWN]
      self._warn(
        self._round,
        f'{self._name} failed, the run continues without it: {reason}',
      )


def csv_round(line: bytes) -> int | None:
  """Returns the round of a line, -1 for the header, None if it is damaged."""
  try:
    (row,) = csv.reader([line.decode()])
    if tuple(row) == CSV_HEADER:
      return -1
    round_, _, value = row
    float(value)
    return int(round_)
  except (ValueError, csv.Error):
    return None


class CsvWriter:
  """Writes `metrics.csv` in the work directory."""

  def __init__(self, start: callbacks.Start):
    self._path = start.workdir / CSV_FILE
    kept = atomic.kept(atomic.content(self._path), start.kept, csv_round)[0]
    atomic.write_text(self._path, kept or _csv_text([CSV_HEADER]))

  def write(self, measured: Measured) -> None:
    """Appends a line for each number."""
    rows = [(measured.round, *item) for item in measured.scalars.items()]
    atomic.append(self._path, _csv_text(rows))

  def close(self, error: BaseException | None) -> None:
    """Does nothing; the file is closed after each round."""


def _csv_text(rows: list) -> str:
  text = io.StringIO()
  csv.writer(text, lineterminator='\n').writerows(rows)
  return text.getvalue()


class TensorboardWriter:
  """Writes events in the folder `tensorboard`; a resumed run adds a file."""

  def __init__(self, start: callbacks.Start):
    # Not `SummaryWriter`, which writes in a thread: on a full disk this thread
    # ends, and the run waits for it forever. `EventsWriter` raises in this one.
    self._protos: Any = importlib.import_module('tensorboardX.proto.event_pb2')
    self._summary: Any = importlib.import_module('tensorboardX.summary')
    writer: Any = importlib.import_module('tensorboardX.event_file_writer')
    folder = start.workdir / TENSORBOARD_FOLDER
    folder.mkdir(exist_ok=True)
    # TensorBoard reads files by name, and the name has the time in seconds.
    number = len([*folder.iterdir()])
    self._file = writer.EventsWriter(str(folder / 'events'), f'.{number:04}')
    # This event makes TensorBoard drop the rounds that are computed again.
    if number:
      event = self._event(start.kept + 1)
      event.session_log.status = self._protos.SessionLog.START
      self._file.write_event(event)
    if not start.resumed:
      text = json.dumps(start.config, indent=2, sort_keys=True)
      text = ''.join(f'    {line}\n' for line in text.splitlines())
      self._add(0, [self._summary.text('config', text)])

  def write(self, measured: Measured) -> None:
    """Writes the numbers and images as one event."""
    found = [self._summary.scalar(*item) for item in measured.scalars.items()]
    for name, image in measured.images.items():
      found.append(self._summary.image(name, image, dataformats='HWC'))
    self._add(measured.round, found)

  def close(self, error: BaseException | None) -> None:
    """Closes the file."""
    self._file.close()

  def _event(self, step: int) -> Any:
    return self._protos.Event(wall_time=time.time(), step=step)

  def _add(self, step: int, summaries: list[Any]) -> None:
    event = self._event(step)
    for one in summaries:
      event.summary.value.extend(one.value)
    self._file.write_event(event)
    self._file.flush()


class Sent:
  """Record of the measurements that were sent to a service.

  MLflow and Weights & Biases cannot delete a measurement. Therefore the file
  has the identifier of the run at each service (`id` in `entry`) and the last
  round that was sent. A run that is killed and resumed sends no round twice;
  the service may lack the round during which it was killed.
  """

  def __init__(self, workdir: Path, service: str):
    self._path, self._service = workdir / SENT_FILE, service
    self.entry: dict[str, Any] = self._read().get(service, {})

  def _read(self) -> dict[str, Any]:
    return recorder.read_object(self._path) if self._path.exists() else {}

  def begin(self, **entry: Any) -> None:
    """Replaces the entry by one for a new run at the service."""
    self.entry = entry
    self._save()

  def take(self, measured: Measured) -> bool:
    """Returns whether measurements are new, and marks them as sent."""
    new = measured.round > self.entry.get(measured.kind, -1)
    # Written before the measurements are sent: a run that is killed between the
    # two loses them at the service, which is better than sending them twice.
    if new:
      self.entry[measured.kind] = measured.round
      self._save()
    return new

  def _save(self) -> None:
    recorder.write_json(self._path, self._read() | {self._service: self.entry})


class WandbWriter:
  """Writes to a run of Weights & Biases, which a resumed run continues.

  Its environment variables apply, such as `WANDB_MODE` and `WANDB_PROJECT`.
  """

  def __init__(self, start: callbacks.Start):
    self._wandb: Any = importlib.import_module('wandb')
    self._sent = Sent(start.workdir, 'wandb')
    if 'id' not in self._sent.entry:
      self._sent.begin(id=uuid.uuid4().hex[:8])
    self._run = self._wandb.init(
      id=self._sent.entry['id'],
      resume='allow',
      project=os.environ.get('WANDB_PROJECT', PROJECT),
      name=start.name,
      dir=str(start.workdir),
      config=parsing.flatten(start.config),
      reinit='create_new',  # other threads may have runs
      settings=self._wandb.Settings(
        console='off',
        silent=True,
        login_timeout=LOGIN_S,
        finish_timeout=FINISH_S,
      ),
    )
    # Steps of the service must increase with every call, so that they cannot be
    # rounds: round R has steps 2 R (training) and 2 R + 1 (evaluation).
    self._run.define_metric('round')
    self._run.define_metric('*', step_metric='round')

  def write(self, measured: Measured) -> None:
    """Sends numbers and images, unless they have been sent before."""
    if not self._sent.take(measured):
      return
    images = {
      name: self._wandb.Image(image) for name, image in measured.images.items()
    }
    self._run.log(
      {'round': measured.round, **measured.scalars, **images},
      step=2 * measured.round + (measured.kind == 'evaluation'),
      commit=True,
    )

  def close(self, error: BaseException | None) -> None:
    """Ends the run; an error marks it as failed."""
    self._run.finish(exit_code=int(error is not None))


class MlflowWriter:
  """Writes to a run of MLflow, which a resumed run continues.

  The environment variables `MLFLOW_TRACKING_URI`, the store, and
  `MLFLOW_EXPERIMENT_NAME` apply.
  """

  def __init__(self, start: callbacks.Start):
    self._mlflow: Any = importlib.import_module('mlflow')
    self._entities: Any = importlib.import_module('mlflow.entities')
    self._sent = Sent(start.workdir, 'mlflow')
    uri, before = self._mlflow.get_tracking_uri(), self._sent.entry.get('uri')
    if before and not self._mlflow.is_tracking_uri_set():
      uri = before  # the default depends on the current directory
    # The functions of the module `mlflow` have one active run per process, and
    # several threads may train.
    self._client = self._mlflow.MlflowClient(tracking_uri=uri)
    if uri == before:
      self._run = self._sent.entry['id']
      self._client.update_run(self._run, status='RUNNING')
    else:
      self._run = self._create(start)
      self._sent.begin(id=self._run, uri=uri)

  def _create(self, start: callbacks.Start) -> str:
    name = os.environ.get('MLFLOW_EXPERIMENT_NAME', PROJECT)
    found = self._client.get_experiment_by_name(name)
    experiment = (
      found.experiment_id if found else self._client.create_experiment(name)
    )
    created = self._client.create_run(
      experiment,
      run_name=start.name,
      tags={'workdir': str(start.workdir)},
    )
    parameters = [
      self._entities.Param(key, str(value)[:LETTERS])
      for key, value in parsing.flatten(start.config).items()
    ]
    for first in range(0, len(parameters), PARAMETERS):
      part = parameters[first : first + PARAMETERS]
      self._client.log_batch(created.info.run_id, params=part)
    return created.info.run_id

  def write(self, measured: Measured) -> None:
    """Sends numbers and images, unless they have been sent before."""
    if not self._sent.take(measured):
      return
    now = int(time.time() * 1000)
    metrics = [
      self._entities.Metric(_allowed(name), value, now, measured.round)
      for name, value in measured.scalars.items()
    ]
    for first in range(0, len(metrics), METRICS):
      part = metrics[first : first + METRICS]
      self._client.log_batch(self._run, metrics=part)
    for name, image in measured.images.items():
      self._client.log_image(
        self._run, image, key=_allowed(name), step=measured.round
      )

  def close(self, error: BaseException | None) -> None:
    """Sets the status of the run."""
    stopped = isinstance(error, SystemExit | KeyboardInterrupt)
    status = 'KILLED' if stopped else 'FAILED' if error else 'FINISHED'
    self._client.set_terminated(self._run, status)


def _allowed(name: str) -> str:
  # Other letters are not allowed in a name.
  return re.sub(r'[^A-Za-z0-9_./ -]', '_', name)


class Kind(NamedTuple):
  """One kind of tracker."""

  open: Open  # makes the writer of a run that starts
  package: str = ''  # module that it needs
  extra: str = ''  # installs the module
  written: tuple[str, ...] = ()  # files and folders in a work directory


KINDS = {
  'csv': Kind(CsvWriter, written=(CSV_FILE,)),
  'tensorboard': Kind(
    TensorboardWriter, 'tensorboardX', 'track', (TENSORBOARD_FOLDER,)
  ),
  'mlflow': Kind(MlflowWriter, 'mlflow', 'mlflow', (SENT_FILE,)),
  'wandb': Kind(WandbWriter, 'wandb', 'wandb', (SENT_FILE, WANDB_FOLDER)),
}


def written(names: tuple[str, ...]) -> tuple[str, ...]:
  """Returns the files and folders of trackers in a work directory."""
  return tuple({path: None for n in names for path in KINDS[n].written})


def check(names: tuple[str, ...]) -> None:
  """Refuses trackers whose packages cannot be imported.

  Raises:
    ConfigError: naming the extra that installs the package.
  """
  for name in names:
    kind = KINDS[name]
    try:
      if kind.package:
        importlib.import_module(kind.package)
    except ImportError as error:
      raise errors.ConfigError(
        f'{name} needs {kind.package}, which cannot be imported: {error}',
        'track',
        plugins.install_command(kind.extra),
      ) from error


def make(config: Config, record: recorder.Recorder) -> list[Tracker]:
  """Returns the trackers of a run; `record` tells of their failures."""

  def warn(round_: int, what: str) -> None:
    record.event(round_, 'warning', {'warning': what})
    record.say(f'warning: {what}')

  return [Tracker(n, KINDS[n].open, warn) for n in config.track]
