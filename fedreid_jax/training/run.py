"""Runs the rounds of a run: trains, evaluates, records, saves and resumes."""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedreid_jax.config import saved_config
from fedreid_jax.core import types
from fedreid_jax.data.synthetic import versions
from fedreid_jax.evaluation import evaluator
from fedreid_jax.method.component import Component
from fedreid_jax.round import component_reports
from fedreid_jax.round.devices import client_store
from fedreid_jax.training import build, callbacks, engine, hooks, warm_start
from fedreid_jax.training.clients import (
  client_states,
  named_models,
  source_stats,
)
from fedreid_jax.training.files import checkpoint, lock, recorder
from fedreid_jax.training.processes import agreement, peers, signals
from fedreid_jax.training.reports import monitor, progress, report, summary
from fedreid_jax.training.tracking import client_metrics, picture

COMPILE_EVENT = '/jax/core/compile/backend_compile_duration'


class Clock:
  """Seconds of each phase of a run, with compilation as a phase."""

  def __init__(self):
    """Starts at zero."""
    self.seconds: dict[str, float] = dict.fromkeys(
      ('setup', 'compile', 'train', 'eval'), 0.0
    )
    self._start = time.perf_counter()
    self._compiled = 0.0
    self._thread = threading.get_ident()
    jax.monitoring.register_event_duration_secs_listener(self._on_duration)

  def close(self) -> None:
    """Stops listening to the compiler."""
    jax.monitoring.unregister_event_duration_listener(self._on_duration)

  def _on_duration(self, event: str, duration_secs: float, **_) -> None:
    # JAX calls it for every thread, and other threads may train other runs.
    if event == COMPILE_EVENT and threading.get_ident() == self._thread:
      self._compiled += duration_secs

  def lap(self, phase: str) -> float:
    """Adds the time since the last lap, without compilation, to a phase.

    Returns:
      The added seconds.
    """
    now = time.perf_counter()
    compiled, self._compiled = self._compiled, 0.0
    # JAX measures with the time of day, which can be set meanwhile, so that the
    # difference of the two clocks can be negative.
    spent = max(now - self._start - compiled, 0.0)
    self.seconds[phase] += spent
    self.seconds['compile'] += compiled
    self._start = now
    return spent


class Run:
  """The state of a run in one process.

  Attributes:
    config: the configuration of the run.
    record: writes the files of the run and prints messages.
    saved: reads and writes checkpoints.
    held: lock of the work directory, None in a process that holds no lock.
    hooks: calls the callbacks.
    clock: measures the seconds of setup, training and evaluation.
    setup: images, network, components and executor of the rounds.
    server: state of the server.
    store: states of the clients.
    clients: saves and restores these states.
    names: names of the clients in canonical order.
    form: where the metrics of the clients of a round are written.
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
    calls: hooks.Hooks,
    make: build.Maker = build.build,
    root: bytes | None = None,
  ):
    self.config, self.record, self.saved = config, record, saved
    self.held, self.hooks = held, calls
    self.clock = Clock()
    record.phase(f'reading the images: data.source={config.data.source}')
    self.setup = make(config, root)
    self.server, self.store = self.setup.executor.init(
      self.setup.variables, self.setup.pretrained
    )
    if self.setup.guarantee.claimed:
      senders = self.setup.executor.senders(self.server, self.store)
      self.setup.guarantee.check(senders)
    self.names = [c.name for c in self.setup.federation.clients]
    self.clients = client_states.ClientStates(
      self.store, saved, self.names, config.execution.store
    )
    people = engine.participants_of(config, self.setup.federation)
    # All rounds of a run have the same form.
    self.form: client_metrics.Form = client_metrics.form(
      config.client_metrics, people.cohort
    )
    if self.clients.notice:
      record.say(self.clients.notice)
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
        self.server = warm_start.states(
          self.setup,
          self.server,
          self.store,
          config.start_from,
          config.data,
          self.record.say,
        )
      self.record.phase('compiling and evaluating the model before training')
      self.server, log = self.setup.executor.prepare(self.server, self.store)
      self.progress.count(log)
      self.clock.lap('train')
      # Saved before training, because a work directory that has rounds and no
      # checkpoint is refused as damaged.
      self._save(self._evaluate())
    stopped = self._ended(agreement.largest(self.hooks.ending()))
    if not stopped and self.progress.done < config.rounds:
      self.record.phase('compiling a round: seconds to minutes, once a machine')
    with signals.deferred() as caught:
      while not stopped and self.progress.done < config.rounds:
        self._round()
        stopped = self._after_round(caught)
    self.record.results(self._results())
    report.print_summary(config, self.record, self.progress)
    self.record.say(
      f'privacy: {self.setup.guarantee.statement(self.progress.done)}'
    )
    return self._results()

  def _after_round(self, caught: Callable[[], int]) -> bool:
    """Evaluates and saves if they are due; returns whether to stop."""
    config, done = self.config, self.progress.done
    last = done == config.rounds
    score = None
    if last or done % config.evaluation.every == 0:
      score = self._evaluate()
    # All processes must save and end after the same round.
    ending = agreement.largest(self.hooks.ending() or caught())
    due = last or score is not None
    if due or ending or done % config.checkpoint_every == 0:
      self._save(score)
      # A callback may also end the run when it receives the checkpoint.
      ending = max(ending, agreement.largest(self.hooks.ending()))
    return self._ended(ending)

  def _ended(self, ending: int) -> bool:
    """Ends the run after it was saved; returns whether a callback stopped it.

    Args:
      ending: number of a signal, STOPPED or FAILED of `hooks`, 0 for no end.

    Raises:
      SystemExit: after a signal.
      Exception: raised by a callback.
    """
    done = self.progress.done
    if ending == hooks.FAILED:
      self.hooks.raise_error()
      raise peers.lost()  # another process has raised it
    if ending == hooks.STOPPED:
      if done < self.config.rounds:
        self.record.say(f'saved after round {done}, stopped by a callback')
      return True
    if ending:
      self.record.say(f'saved after round {done}, stopped by a signal')
      raise SystemExit(128 + ending)
    return False

  def _resume(self) -> None:
    step = self.saved.latest()
    self.hooks.start(
      callbacks.Start(
        self.saved.workdir,
        saved_config.to_json(self.config),
        step or 0,
        resumed=step is not None,
      )
    )
    server, host = self.clients.restore(step, self.server)
    if step is None:
      return
    self.fresh = False
    self.server = self.setup.executor.put_server(server)
    self.progress.load(step, host)
    self.clock.seconds = host['seconds']
    self.record.say(f'resumed after round {step}')

  def _save(self, score: float | None) -> None:
    host = {
      'source': versions.resolve(self.config.data.source),
      'sources': list(
        self.config.data.sources or self.setup.federation.sources
      ),
      'world_seed': self.config.data.world_seed,
      'clients': self.names,
    } | self.progress.to_host(self.clock.seconds)
    self._check_lock()
    done = self.progress.done
    path = self.clients.save(done, self.server, host, score)
    self.hooks.checkpoint(callbacks.Checkpoint(done, path, score))

  @property
  def _components(self) -> Sequence[Component]:
    return self.setup.executor.algorithm.components

  def _check_lock(self) -> None:
    if self.held:
      self.held.check()

  def _round(self) -> None:
    state, executor = self.progress, self.setup.executor
    lr = float(self.setup.schedule(state.done))
    self.server, log = executor.round(self.server, self.store, state.done)
    # JAX returns before the devices are done; the lap must not.
    jax.block_until_ready(self.server)
    seconds = self.clock.lap('train')
    # Before anything is written: the folder may belong to another run by now.
    self._check_lock()
    state.done += 1
    state.images += log['images']
    state.count(log)
    form = self.form
    self.hooks.round(
      callbacks.Round(
        state.done,
        self.config.rounds,
        report.round_values(log, seconds, lr)
        | report.cohort_values(log, self.names, form)
        | self._clusters_of_round(),
        report.client_values(log, self.names),
        form,
      )
    )
    self.monitor.check_weights(log['fell_back'], log['stayed'])
    self.monitor.warn_once(
      component_reports.warnings(self._components, log['metrics'])
    )
    far = report.out_of_range(log, self.names)
    lost = report.excluded(log, self.names)
    self.monitor.check_updates(lost, far, len(log['clients']))
    self.monitor.check_loss(log, self._results)

  def _evaluate(self) -> float | None:
    """Evaluates all models and records their results.

    Returns:
      The score that selects the best checkpoint, None if there are no results
      and before training.
    """
    per_query: evaluator.PerQuery = {}
    config = self.config
    pictures = picture.Pictures(config.evaluation, config.track_images)
    drawn = self.hooks.watched and config.track_images
    entries = self.setup.evaluate(
      self._models(),
      *self._source(),
      per_query=per_query,
      seen=pictures if drawn else None,
    )
    if self.progress.done == self.config.rounds:
      self.record.queries(per_query)
    self.clock.lap('eval')
    for entry in entries:
      entry['round'] = self.progress.done
    # A copy, so that no callback can change the results of the run.
    self.hooks.evaluation(
      callbacks.Evaluation(
        self.progress.done, tuple(copy.deepcopy(entries)), pictures.found
      )
    )
    self.progress.evaluation += entries
    self.record.results(self._results())
    # As in the summary, the model before training is no candidate.
    return summary.checkpoint_score(entries) if self.progress.done else None

  def _source(self) -> tuple:
    """Returns the function that re-estimates moments before an evaluation.

    It is the only element of a tuple, which is empty if the models are
    evaluated with their running moments.
    """
    rule = self.config.evaluation.batch_stats
    if rule == 'running':
      return ()
    groups = np.asarray(self.server.groups)
    executor, sent = self.setup.executor, self.progress.bytes
    return (source_stats.make(executor, groups, self.names, sent, rule),)

  def _models(self) -> dict[str, types.Flat]:
    """Returns the server's models and the clients' models to evaluate."""
    self.clients.publish()
    models = named_models.of(
      self.server.shared,
      client_store.Personal(self.store),
      np.asarray(self.server.groups),
      self.names,
    )
    own = component_reports.models_to_evaluate(self._components, self.store)
    return models | {f'client:{self.names[k]}': x for k, x in own.items()}

  def _clusters(self) -> dict[str, Any]:
    """Returns the clients of each server model, empty without clustering."""
    if not self.setup.executor.algorithm.clustered:
      return {}
    return {
      'clusters': report.clusters(np.asarray(self.server.groups), self.names)
    }

  def _clusters_of_round(self) -> dict[str, Any]:
    """Returns the clusters, or their number if their clients are many."""
    found = self._clusters()
    rule = self.config.client_metrics
    if found and client_metrics.form(rule, len(self.names)) != 'lines':
      return {'num_clusters': len(found['clusters'])}
    return found

  def _results(self) -> dict[str, Any]:
    return self._clusters() | report.results(
      self.config,
      self.progress,
      self.clock.seconds,
      self.setup.guarantee.statement(self.progress.done),
    )
