"""Training in a work directory: rounds, evaluations and checkpoints."""

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from fedreid_jax import errors
from fedreid_jax.config import load, parsing, schema, validation
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import types
from fedreid_jax.data.synthetic import versions
from fedreid_jax.evaluation import evaluator
from fedreid_jax.models import networks
from fedreid_jax.round import ahead, compose
from fedreid_jax.round.simulated import Simulated
from fedreid_jax.training import (
  build,
  cluster_quality,
  named_models,
  picture,
  source_stats,
  trackers,
  warm_start,
  whole_network,
)
from fedreid_jax.training import callbacks as events
from fedreid_jax.training.files import (
  checkpoint,
  client_states,
  recorder,
  run_files,
  run_secret,
  sealed,
  steps,
)
from fedreid_jax.training.processes import peers, process, signals
from fedreid_jax.training.reports import monitor, report

QUIET = 2.0  # seconds of rendering between two lines
COMPILE_EVENT = '/jax/core/compile/backend_compile_duration'


def train(
  config: ConfigDict | Config,
  workdir: str | os.PathLike[str],
  restart: bool = False,
  verbose: int = False,
  callbacks: Sequence[events.Callback] = (),
) -> dict[str, Any]:
  """Trains, or resumes, a run in a work directory, which it locks.

  >>> import fedreid_jax as fr
  >>> config = fr.load_config('dfh:smoke', rounds=1)
  >>> results = fr.train(config, workdir='runs/one_round')
  >>> results['rounds'], [entry['target'] for entry in results['summary']]
  (1, ['mall', 'mall', 'mall'])

  Several threads may train at once in different work directories. Runs that use
  several devices train one after another. Compiled programs are kept in the
  user's cache directory, unless JAX already has one. Signals are handled by the
  caller; a run that was interrupted resumes from its last checkpoint. If a
  tracker of `config.track` fails, there is a warning, and the run continues
  without it; an exception of a callback ends the run.

  Args:
    config: `ConfigDict`, of `load_config` for example, or the `config` of a
      snapshot.
    workdir: directory of the run; it is made if it does not exist.
    restart: delete an earlier run in this directory instead of resuming it.
    verbose: print the lines that `fedreid train` prints; 2: those that it
      prints with `--verbose`.
    callbacks: instances of classes derived from `Callback`, called in this
      order by the first process of the run.

  Returns:
    The contents of `results.json`; fewer rounds than configured after a
    callback has raised `StopTraining`.

  Raises:
    ConfigError: for a configuration that cannot be run, or that differs from
      the one of the run in the directory.
    DataError: for images or labels that cannot be trained on or evaluated.
    IntegrityError: for a damaged run in the directory.
    DivergedError: when the updates are no longer finite.
    ResourceError: when memory, a device or the disk does not suffice.
    LockedError: when another run uses the directory.
    Exception: raised by a callback; the round was saved before.
    SystemExit: with 128 + signal after a clean save, in commands only.
  """
  return run_rounds(build.build, config, workdir, restart, verbose, callbacks)


def run_rounds(
  make: build.Maker,
  config: ConfigDict | Config,
  workdir: str | os.PathLike[str],
  restart: bool = False,
  verbose: int = False,
  callbacks: Sequence[events.Callback] = (),
) -> dict[str, Any]:
  """Trains, or resumes, a run as `train` does, with the parts of `make`."""
  config = validation.validate(config)
  events.check(callbacks)
  trackers.check(config.track)
  with process.turn(config):
    folder = Path(workdir).expanduser().absolute()
    return _train(make, config, folder, restart, verbose, callbacks)


def _train(
  make: build.Maker,
  config: Config,
  workdir: Path,
  restart: bool,
  verbose: int,
  callbacks: Sequence[events.Callback],
):
  # Processes that differ in a field or in code would train different models and
  # end with wrong numbers.
  peers.require(
    'configuration or code',
    lambda: (
      parsing.flatten(config)
      | {'--workdir': str(workdir), '--restart': restart}
      | peers.code(schema.plug_ins(config))
    ),
  )
  # A run keeps its type of computation when it goes on elsewhere.
  kind = networks.dtype(config.model.dtype, jax.default_backend())
  config = replace(config, model=replace(config.model, dtype=kind))
  resolved, held = load.to_json(config), None
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      held = stack.enter_context(run_files.Lock(workdir))
      if not restart:
        run_files.check(workdir, resolved, validation.is_private(config))
    record = stack.enter_context(
      recorder.Recorder(workdir, config.rounds, verbose)
    )
    saved = checkpoint.Checkpoints(
      workdir,
      run_files.digests(resolved),
      stay=config.checkpoints_kept == 'all',
    )
    calls = events.Hooks(record, [*trackers.make(config, record), *callbacks])
    # Only the first process reads or draws the secret; the others receive it.
    root = peers.of_first(lambda: run_secret.root(config, workdir, restart))
    clock = Clock()
    stack.callback(clock.close)
    one = Run(config, record, saved, held, calls, clock, make, root, restart)
    # Only now, when all parts are built, a restart deletes the earlier run.
    if held:
      stack.enter_context(run_files.begun(workdir, restart, held.check))
    peers.largest(0)  # no process reads before old files are deleted
    report.describe(config, one.setup, record, workdir, root)
    with calls:
      return one.all()


def _mean_ami(clusters: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
  """The mean over clients, empty if it was not measured."""
  each = [found['ami'] for found in clusters.values() if 'ami' in found]
  return {'ami': sum(each) / len(each)} if each else {}


class Clock:
  """Seconds of each phase of a run, with compilation as a phase."""

  def __init__(self):
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
    """Adds the time since the last lap, without compilation, and returns it."""
    now = time.perf_counter()
    compiled, self._compiled = self._compiled, 0.0
    # JAX measures with the time of day, which can be set meanwhile, so that the
    # difference of the two clocks can be negative.
    spent = max(now - self._start - compiled, 0.0)
    self.seconds[phase] += spent
    self.seconds['compile'] += compiled
    self._start = now
    return spent


def _is_rendered(source: str) -> bool:
  return versions.resolve(source) in versions.VERSIONS


def _reading(source: str) -> str:
  what = 'reading the images'
  if _is_rendered(source):
    what = 'rendering the images: seconds to a minute, once a machine'
  return f'{what}: data.source={source}'


class Run:
  """The state of a run in one process."""

  def __init__(
    self,
    config: Config,
    record: recorder.Recorder,
    saved: checkpoint.Checkpoints,
    held: run_files.Lock | None,
    calls: events.Hooks,
    clock: Clock,
    make: build.Maker,
    root: bytes,
    restart: bool,
  ):
    self.config, self.record, self.saved = config, record, saved
    # Of several processes, only the first one holds the lock.
    self.held, self.hooks, self.clock = held, calls, clock
    record.phase(_reading(config.data.source))
    built = config
    if not restart and steps.complete(saved.workdir):
      built = whole_network.pinned(config, saved.workdir)
    self.setup = make(built, root)
    self.server, self.store = self.setup.start()
    # In canonical order.
    self.names = [c.name for c in self.setup.federation.clients]
    self.clients = client_states.ClientStates(
      self.store, saved, self.names, config.execution.store
    )
    # All rounds of a run have the same form.
    self.form: recorder.Form = recorder.client_form(
      config.client_metrics, self.setup.participants.cohort
    )
    if text := cluster_quality.notice(self.setup.rounds.algorithm.components):
      record.say(text)
    if self.clients.notice:
      record.say(self.clients.notice)
    self.progress = monitor.Progress()
    self.kept: int | None = None  # round of the last checkpoint
    self.monitor = monitor.Monitor(
      config, record, self.setup.federation.clients, self.progress
    )
    self.fresh = True
    folder = saved.workdir / steps.FOLDER
    ended = not restart and steps.manifest(folder, config.rounds).exists()
    # The compilers of several processes exchange results for GPUs, so that all
    # must compile in one order.
    self.ahead: Callable[[], object] | None = None
    self.waited = False
    # Rounds in plain Python compile nothing, and have tables of their own.
    debug = config.execution.debug
    simulated = None if debug else self.setup.rounds.simulated
    if simulated and not ended and jax.process_count() == 1:
      self.ahead = ahead.start(self.setup.rounds, self.server, self.store)
    if simulated:
      self._read_images(simulated)

  def _read_images(self, simulated: Simulated) -> None:
    """Reads the images that stay on the devices."""
    # Each of several processes renders the images of its own clients only.
    alone = simulated.resident and jax.process_count() == 1
    if alone and _is_rendered(self.config.data.source):
      self._render()
    simulated.read_images()

  def _render(self) -> None:
    """Renders the images of the clients, and says how far it has come."""
    clients = self.setup.federation.clients
    said = time.monotonic()
    for number, client in enumerate(clients, 1):
      client.images()
      if time.monotonic() - said > QUIET:
        of_all = f'{number} of {errors.counted(len(clients), "client")}'
        self.record.say(f'  rendered {of_all}, the last one {client.name}')
        said = time.monotonic()

  def all(self) -> dict[str, Any]:
    """Runs the remaining rounds and returns the content of results.json."""
    try:
      return self._all()
    except errors.ResourceError as error:
      if not error.fix.startswith(errors.MAKE_ROOM):
        raise
      # The files of the run: a later round has been computed in vain.
      raise errors.ResourceError(
        error.what, error.where, f'{error.fix}; {self._repeated()}'
      ) from error

  def _repeated(self) -> str:
    """Which rounds the same command computes again."""
    kept, done = self.kept, self.progress.done
    if kept is None:
      return 'the run begins again'
    rounds = {0: 'no round is', 1: f'round {done} is'}.get(
      done - kept, f'rounds {kept + 1} to {done} are'
    )
    return f'{rounds} repeated'

  def _all(self) -> dict[str, Any]:
    config = self.config
    self._resume()
    self.clock.lap('setup')
    if self.fresh:
      if config.start_from:
        if self.setup.frozen and self.held:
          whole_network.write(self.saved.workdir, self.setup.frozen)
        self.server = warm_start.states(
          self.setup,
          self.server,
          self.store,
          config.start_from,
          config.data,
          self.record.say,
          self.setup.frozen,
        )
      if few := build.tuned(config, self.setup):
        self.record.say(few)
      if self.setup.rounds.algorithm.prepares:
        # Its programs are some of those of a round.
        self._wait_for_programs()
      self.record.phase('compiling and evaluating the model before training')
      self.server, log = self.setup.rounds.prepare(self.server, self.store)
      self.progress.count(log)
      self.clock.lap('train')
      # Saved before training, because a work directory that has rounds and no
      # checkpoint is refused as damaged.
      self._save(self._evaluate())
    stopped = self._ended(peers.largest(self.hooks.ending()))
    if not stopped and self.progress.done < config.rounds:
      self._wait_for_programs()
    with signals.deferred() as caught:
      while not stopped and self.progress.done < config.rounds:
        self._round()
        stopped = self._after_round(caught)
    found = self.record.results(self._results())
    report.print_summary(config, self.record, self.progress)
    if self.progress.done < config.rounds:
      for line in self.setup.guarantee.lines(self.progress.done):
        self.record.say(line)
    return found

  def _wait_for_programs(self) -> None:
    """Waits for the programs of a round that another thread compiles."""
    if self.waited:
      return
    self.waited = True
    phase = 'compiling a round: seconds to minutes, once a machine'
    if self.config.execution.debug:
      phase = 'running rounds in plain Python, without compilation'
    self.record.phase(phase)
    self.clock.lap('setup')
    if self.ahead:
      self.ahead()
    self.clock.lap('compile')

  def _after_round(self, caught: Callable[[], int]) -> bool:
    """Evaluates and saves if they are due; returns whether to stop."""
    config, done = self.config, self.progress.done
    last = done == config.rounds
    score = None
    if last or done % config.evaluation.every == 0:
      score = self._evaluate()
    # All processes must save and end after the same round.
    ending = peers.largest(self.hooks.ending() or caught())
    due = last or score is not None
    if due or ending or done % config.checkpoint_every == 0:
      self._save(score)
      # A callback may also end the run when it receives the checkpoint.
      ending = max(ending, peers.largest(self.hooks.ending()))
    return self._ended(ending)

  def _ended(self, ending: int) -> bool:
    """Ends the run after a save; returns whether a callback stopped it."""
    done = self.progress.done
    if ending == events.FAILED:
      self.hooks.raise_error()
      raise peers.lost()  # another process has raised it
    if ending == events.STOPPED:
      if done < self.config.rounds:
        self.record.say(f'saved after round {done}, stopped by a callback')
      return True
    if ending:
      self.record.say(f'saved after round {done}, stopped by a signal')
      raise SystemExit(128 + ending)
    return False

  def _resume(self) -> None:
    step = self.saved.latest()
    server, host = self.clients.restore(step, self.server)
    if step is not None:
      self.fresh, self.kept = False, step
      self.server = self.setup.rounds.put_server(server)
      self.progress.load(step, host)
      self.clock.seconds = host['seconds']
      self.record.resume(step, self.saved.measured(step))
      # Before rows are dropped that an earlier `results.json` may cover.
      self.record.results(self._results())
    self.hooks.report(
      events.Start(
        self.saved.workdir,
        load.to_json(self.config),
        step or 0,
        resumed=step is not None,
      )
    )
    if step is not None:
      self.record.say(f'resumed after round {step}')
      if sealed.FILES not in host:
        self.record.say(sealed.UNCHECKED)

  def _save(self, score: float | None) -> None:
    host = {
      'source': versions.resolve(self.config.data.source),
      'sources': list(
        self.config.data.sources or self.setup.federation.sources
      ),
      'world_seed': self.config.data.world_seed,
      'clients': self.names,
      sealed.FILES: self.record.files(),
    } | self.progress.to_host(self.clock.seconds)
    self._check_lock()
    done = self.progress.done
    path = self.clients.save(done, self.server, host, score)
    self.kept = done
    self.hooks.report(events.Checkpoint(done, path, score))

  def _check_lock(self) -> None:
    if self.held:
      self.held.check()

  def _round(self) -> None:
    state, rounds = self.progress, self.setup.rounds
    components = rounds.algorithm.components
    lr = float(self.setup.schedule(state.done))
    self.server, log = rounds.round(self.server, self.store, state.done)
    # JAX returns before the devices are done; the lap must not.
    jax.block_until_ready(self.server)
    seconds = self.clock.lap('train')
    # Before anything is written: the folder may belong to another run by now.
    self._check_lock()
    state.done += 1
    state.images += log['images']
    state.count(log)
    cohort = [self.setup.federation.clients[k] for k in log['clients']]
    sizes = [c.num_images if c.labelled else 0 for c in cohort]
    report.hide_untrained(log, np.array(sizes))
    form = self.form
    clusters = self._quality_of_clusters(log['clients'])
    values = report.client_values(log, self.names)
    for name in values.keys() & clusters.keys():
      values[name] |= clusters[name]
    self.hooks.report(
      events.Round(
        state.done,
        self.config.rounds,
        report.round_values(log, seconds, lr)
        | report.cohort_values(log, self.names, form)
        | self._clusters_of_round()
        | _mean_ami(clusters),
        values,
        form,
      )
    )
    self.monitor.check_weights(log['fell_back'], log['stayed'])
    self.monitor.warn_once(compose.warnings(components, log['metrics']))
    self.monitor.check_updates(
      report.excluded(log, self.names),
      report.out_of_range(log, self.names),
      len(log['clients']),
    )
    self.monitor.check_loss(log, self._results)

  def _quality_of_clusters(
    self, cohort: np.ndarray
  ) -> dict[str, dict[str, float]]:
    """Metrics of the clusters of clients without labels, by their names."""
    name = cluster_quality.of_method(self.setup.rounds.algorithm.components)
    if not name:
      return {}
    self.clients.publish()  # the first process reads the states of all
    clients = self.setup.federation.clients
    return cluster_quality.measured(name, clients, self.store, cohort)

  def _evaluate(self) -> float | None:
    """Returns the score of a checkpoint, if any."""
    per_query: evaluator.PerQuery = {}
    config, simulated = self.config, self.setup.rounds.simulated
    pictures = picture.Pictures(config.evaluation, config.track_images)
    drawn = self.hooks.watched and config.track_images
    last = self.progress.done == config.rounds
    groups, rule = np.asarray(self.server.groups), config.evaluation.batch_stats
    # Re-estimates moments on the clients before an evaluation.
    sources, sent = [], self.progress.bytes
    if rule in source_stats.MEASURED and simulated:
      sources.append(
        source_stats.make(simulated, groups, self.names, sent, rule)
      )
    entries = self.setup.evaluate(
      self._models(groups),
      *sources,
      per_query=per_query,
      seen=pictures if drawn else None,
      number=None if last else self.progress.done // config.evaluation.every,
    )
    if last:
      self.record.queries(per_query)
    self.clock.lap('eval')
    for entry in entries:
      entry['round'] = self.progress.done
    # A copy, so that no callback can change the results of the run.
    self.hooks.report(
      events.Evaluation(
        self.progress.done, tuple(copy.deepcopy(entries)), pictures.found
      )
    )
    self.progress.evaluation += entries
    # Before the checkpoint, so that a resumed run has the same state.
    self.server = self.setup.rounds.judge(
      self.server, self.progress.done, report.held_out(entries)
    )
    self.record.results(self._results())
    # As in the summary, the model before training is no candidate.
    return report.checkpoint_score(entries) if self.progress.done else None

  def _models(self, groups: np.ndarray) -> Mapping[str, types.Flat]:
    self.clients.publish()
    personal = self.store.personal
    models = named_models.of(self.server.shared, personal, groups, self.names)
    components = self.setup.rounds.algorithm.components
    own = compose.models_to_evaluate(components, self.store)
    return named_models.joined(models, own, self.names) if own else models

  def _clusters(self) -> dict[str, Any]:
    """The clients of each server model, empty without clustering."""
    if not self.setup.rounds.algorithm.clustered:
      return {}
    found: dict[str, list[str]] = {}
    groups = np.asarray(self.server.groups).tolist()
    for name, group in zip(self.names, groups, strict=True):
      found.setdefault(str(group), []).append(name)
    return {'clusters': found}

  def _clusters_of_round(self) -> dict[str, Any]:
    """The clusters, or their number if their clients are many."""
    found = self._clusters()
    rule = self.config.client_metrics
    if found and recorder.client_form(rule, len(self.names)) != 'lines':
      return {'num_clusters': len(found['clusters'])}
    return found

  def _results(self) -> dict[str, Any]:
    return self._clusters() | report.results(
      self.config,
      self.progress,
      self.clock.seconds,
      self.setup.guarantee.statement(self.progress.done),
    )
