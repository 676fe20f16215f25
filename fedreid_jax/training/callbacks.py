"""Callbacks of a run, and the events that they receive.

The console, `metrics.jsonl`, the trackers and the callbacks of a user receive
the same events. Only the first process of a run calls them, and each of them
may end it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
from jaxtyping import UInt8
from numpy import ndarray

from fedreid_jax import errors

# Processes agree after a round on the largest of their reasons to end, which
# are numbers of signals or one of these.
STOPPED, FAILED = 1000, 1001


class StopTraining(Exception):  # noqa: N818  It is no error.
  """Ends a run from a callback, without an error.

  The current round is completed and saved. `train` returns its results so far,
  and a later call resumes the run after this round.

  >>> import fedreid_jax as fr
  >>> class Patience(fr.Callback):
  ...   def on_round(self, event):
  ...     if event.metrics['loss'] < 100:
  ...       raise fr.StopTraining
  >>> config = fr.load_config('fedpav:smoke', rounds=3)
  >>> results = fr.train(config, 'runs/short', callbacks=[Patience()])
  >>> results['rounds']
  1
  """


class Start(NamedTuple):
  """The start of a run, before its first round."""

  workdir: Path
  config: Mapping[str, Any]  # as in `config.json`
  round: int  # completed rounds; 0 unless resumed
  resumed: bool  # from a checkpoint

  @property
  def name(self) -> str:
    """Name of the run in trackers: its recipe and its seed."""
    return f'{self.config["name"]}-seed{self.config["seed"]}'

  @property
  def kept(self) -> int:
    """The last round whose measurements stay, -1 if no round was saved."""
    # Later rounds were not saved, and a resumed run computes them again.
    return self.round if self.resumed else -1


class Round(NamedTuple):
  """A finished round of training.

  `clients` has the metrics of every client that took part with a finite update,
  by its name: means over its steps, and its 'weight' in the aggregation if
  there is one. They are written in `metrics.jsonl` and in trackers (form
  `lines`), in a file of the round (`files`), or nowhere (`summary`).
  """

  round: int  # from 1
  rounds: int  # of the run
  metrics: Mapping[str, Any]  # as in `metrics.jsonl`, such as 'loss'
  clients: Mapping[str, Mapping[str, float]]
  form: Literal['lines', 'files', 'summary'] = 'lines'


class Evaluation(NamedTuple):
  """An evaluation; the one of round 0 precedes training.

  An entry has a target and a model, as in `results.json`: `{'target': 'mall',
  'model': 'global', 'metrics': {'mAP': ...}, ...}`. The clients' own models are
  named 'client:NAME'. Images are ranked lists of some queries, by
  'TARGET/MODEL'.
  """

  round: int  # number of completed rounds
  entries: tuple[Mapping[str, Any], ...]
  images: Mapping[str, UInt8[ndarray, 'H W 3']]


class Checkpoint(NamedTuple):
  """A checkpoint that was written completely.

  The score of the evaluation of this round selects the best checkpoint. It is
  None without an evaluation and before training.
  """

  round: int  # number of completed rounds
  path: Path  # directory of the checkpoint
  score: float | None


class End(NamedTuple):
  """The end of a run; `error` is None after all rounds and `StopTraining`."""

  round: int  # number of completed rounds
  error: BaseException | None  # a signal is a `SystemExit`


class Callback:
  """Functions that a run calls; each does nothing unless it is overridden.

  Events are named tuples of plain values, which are described in
  `fedreid_jax.training.callbacks`. An exception in a callback ends the run:
  the round is completed and saved first, and the callback receives `on_end`
  only. `StopTraining` ends the run without an error.

  >>> import fedreid_jax as fr
  >>> class Best(fr.Callback):
  ...   def __init__(self):
  ...     self.score, self.saved = 0.0, []
  ...   def on_evaluation(self, event):
  ...     scores = [entry['metrics']['mAP'] for entry in event.entries]
  ...     self.score = max(self.score, *scores)
  ...   def on_checkpoint(self, event):
  ...     self.saved.append(event.path.name)
  >>> best = Best()
  >>> config = fr.load_config('fedpav:smoke', rounds=1)
  >>> results = fr.train(config, 'runs/watched', callbacks=[best])
  >>> best.saved, best.score > 0
  (['0', '1'], True)
  """

  def on_start(self, event: Start) -> None:
    """Called before the first round, also of a resumed run."""

  def on_round(self, event: Round) -> None:
    """Called after the training of each round."""

  def on_evaluation(self, event: Evaluation) -> None:
    """Called after each evaluation."""

  def on_checkpoint(self, event: Checkpoint) -> None:
    """Called after each checkpoint."""

  def on_end(self, event: End) -> None:
    """Called once when the run ends, also after an exception."""


Event = Start | Round | Evaluation | Checkpoint
_FUNCTIONS = {
  Start: 'on_start',
  Round: 'on_round',
  Evaluation: 'on_evaluation',
  Checkpoint: 'on_checkpoint',
}


class Hooks:
  """The callbacks of a run; the first process calls them.

  An exception in the record of the run is raised at once, one in another
  callback after the run has saved its state.
  """

  def __init__(self, record: Callback, others: Sequence[Callback]):
    """Prepares the calls; the record of the run receives each event first."""
    first = jax.process_index() == 0
    self._all = [record, *others] if first else []
    self._failed: list[Callback] = []
    self._started: list[Callback] = []
    self._error: Exception | None = None
    self._round = 0
    self.watched = len(self._all) > 1

  def __enter__(self):
    return self

  def __exit__(self, kind, error: BaseException | None, trace) -> None:
    """Calls `on_end` of every callback, then raises the first exception."""
    found = None
    for one in self._started:
      try:
        one.on_end(End(self._round, error))
      except StopTraining:
        pass  # the run ends anyway
      except Exception as failure:
        found = found or failure
    if found and error is None:
      raise found

  def report(self, event: Event) -> None:
    """Calls the function for an event; an exception at the start is raised."""
    self._round = event.round
    for one in self._all:
      if isinstance(event, Start):
        self._started.append(one)
      if one not in self._failed:
        self._call(one, event)
    if isinstance(event, Start):
      self.raise_error()

  def _call(self, one: Callback, event: Event) -> None:
    try:
      getattr(one, _FUNCTIONS[type(event)])(event)
    except StopTraining as stop:
      self._error = self._error or stop
    except Exception as error:
      # Results and reports are made from the record, so a run ends without it.
      if one is self._all[0]:
        raise
      # Kept until the round is saved: the other callbacks receive all events,
      # so that a resumed run need not repeat any.
      self._failed.append(one)
      if self.ending() != FAILED:
        self._error = error

  def ending(self) -> int:
    """Returns STOPPED or FAILED after an exception, 0 without one."""
    if self._error is None:
      return 0
    return STOPPED if isinstance(self._error, StopTraining) else FAILED

  def raise_error(self) -> None:
    """Raises the exception of a callback, if there is one."""
    if self._error is not None and self.ending() == FAILED:
      raise self._error


def check(found: Sequence[object]) -> None:
  """Raises a ConfigError for an object that is no `Callback`."""
  for one in found:
    if not isinstance(one, Callback):
      raise errors.ConfigError(
        f'{one!r} is not an instance of fedreid_jax.Callback',
        'callbacks',
        'derive its class from Callback, and give an instance',
      )
