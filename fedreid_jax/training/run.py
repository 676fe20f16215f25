"""Runs the rounds of a run: trains, evaluates, records, saves and resumes."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedreid_jax.core import types
from fedreid_jax.evaluation import evaluator
from fedreid_jax.training import (
  agreement,
  build,
  checkpoint,
  clock,
  lock,
  monitor,
  named_models,
  progress,
  recorder,
  report,
  signals,
  source_stats,
  summary,
  warm_start,
)


class Run:
  """The state of a run in one process.

  Attributes:
    config: the configuration of the run.
    record: writes the files of the run and prints messages.
    saved: reads and writes checkpoints.
    held: lock of the work directory, None in a process that holds no lock.
    clock: measures the seconds of setup, training and evaluation.
    setup: images, network, components and executor of the rounds.
    server: state of the server.
    clients: states of all clients.
    names: names of the clients in canonical order.
    progress: completed rounds and the results so far.
    monitor: warns of divergence and ends a run that diverged.
    fresh: whether the run starts at round 0, without a checkpoint.
  """

  def __init__(
    self,
    config,
    record: recorder.Recorder,
    saved: checkpoint.Checkpoints,
    held: lock.Lock | None,
  ):
    self.config, self.record, self.saved = config, record, saved
    self.held = held
    self.clock = clock.Clock()
    self.setup = build.build(config)
    self.server, self.clients = self.setup.executor.init(
      self.setup.variables, self.setup.pretrained
    )
    self.names = [c.name for c in self.setup.federation.clients]
    self.progress = progress.Progress()
    self.monitor = monitor.Monitor(
      config, record, self.setup.federation.clients, self.progress
    )
    self.fresh = True

  def all(self) -> dict[str, Any]:
    """Runs the remaining rounds and returns the content of results.json."""
    config = self.config
    self._resume()
    self.clock.lap('setup')
    if self.fresh:
      if config.start_from:
        self.server, self.clients = warm_start.states(
          self.setup,
          self.server,
          config.start_from,
          config.data,
          self.record.say,
        )
      self.server, log = self.setup.executor.prepare(self.server, self.clients)
      self.progress.count(log)
      self.clock.lap('train')
      self._save(self._evaluate())
    with signals.deferred() as caught:
      while self.progress.done < config.rounds:
        self._round()
        self._after_round(caught)
    self.record.results(self._results())
    report.print_summary(config, self.record, self.progress.evaluation)
    return self._results()

  def _after_round(self, caught: Callable[[], int]) -> None:
    """Evaluates and saves at their intervals, and exits after a signal."""
    config, done = self.config, self.progress.done
    last = done == config.rounds
    score = None
    if last or done % config.evaluation.every == 0:
      score = self._evaluate()
    signal = agreement.largest(caught())
    due = last or score is not None
    if due or signal or done % config.checkpoint_every == 0:
      self._save(score)
    if signal:
      self.record.say(f'saved after round {done}, stopped by a signal')
      raise SystemExit(128 + signal)

  def _resume(self) -> None:
    step = self.saved.latest(self.record.say)
    self.record.rewind(-1 if step is None else step)
    if step is None:
      return
    self.fresh = False
    server, self.clients, host = self.saved.restore(
      step, self.server, self.clients
    )
    self.server = self.setup.executor.put_server(server)
    self.progress.load(step, host)
    self.clock.seconds = host['seconds']
    self.record.say(f'resumed after round {step}')

  def _save(self, score: float | None) -> None:
    host = {
      'source': self.config.data.source,
      'sources': list(self.config.data.sources),
      'world_seed': self.config.data.world_seed,
      'clients': self.names,
    } | self.progress.to_host(self.clock.seconds)
    self._check_lock()
    self.saved.save(self.progress.done, self.server, self.clients, host, score)

  def _check_lock(self) -> None:
    if self.held:
      self.held.check()

  def _round(self) -> None:
    state, executor = self.progress, self.setup.executor
    lr = float(self.setup.schedule(state.done))
    self.server, log = executor.round(self.server, self.clients, state.done)
    jax.block_until_ready(self.server)
    seconds = self.clock.lap('train')
    self._check_lock()
    state.done += 1
    state.images += log['images']
    state.count(log)
    values = report.round_values(log, self.names, seconds, lr)
    self.record.round(state.done, self.config.rounds, values | self._clusters())
    self.monitor.check_weights(log['fell_back'])
    self.monitor.warn_once(executor.warnings(log['metrics']))
    self.monitor.check_updates(values['excluded'])
    self.monitor.check_loss(log, self._results)

  def _evaluate(self) -> float | None:
    """Evaluates all models and records their results.

    Returns:
      The score that selects the best checkpoint: the mean over the targets and
      the server's models, or the clients' models if the server's are not
      evaluated. None if there are no results.
    """
    per_query: evaluator.PerQuery = {}
    entries = self.setup.evaluate(
      self._models(), *self._source(), per_query=per_query
    )
    if self.progress.done == self.config.rounds:
      self.record.queries(per_query)
    self.clock.lap('eval')
    for entry in entries:
      entry['round'] = self.progress.done
      self.record.evaluated(entry)
    self.progress.evaluation += entries
    self.record.results(self._results())
    if not entries:
      return None
    served = [e for e in entries if not e['model'].startswith('client:')]
    scores = [summary.score(e['metrics']) for e in served or entries]
    return float(np.mean(scores))

  def _source(self) -> tuple:
    """Returns the function that re-estimates moments before an evaluation.

    It is the only element of a tuple, which is empty if the models are
    evaluated with their running moments.
    """
    if self.config.evaluation.batch_stats == 'running':
      return ()
    groups = np.asarray(self.server.groups)
    executor, sent = self.setup.executor, self.progress.bytes
    return (source_stats.make(executor, groups, self.names, sent),)

  def _models(self) -> dict[str, types.Flat]:
    """Returns the server's models and the clients' models to evaluate."""
    models = named_models.of(
      self.server.shared,
      self.clients.personal,
      np.asarray(self.server.groups),
      self.names,
    )
    own = self.setup.executor.models_to_evaluate(self.clients)
    return models | {f'client:{self.names[k]}': x for k, x in own.items()}

  def _clusters(self) -> dict[str, Any]:
    """Returns the clients of each server model, empty without clustering."""
    if not self.setup.executor.clustered:
      return {}
    return {
      'clusters': report.clusters(np.asarray(self.server.groups), self.names)
    }

  def _results(self) -> dict[str, Any]:
    return self._clusters() | report.results(
      self.config, self.progress, self.clock.seconds
    )
