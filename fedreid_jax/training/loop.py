"""The round loop: train, evaluate, record, save, resume."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import parsing, validation
from fedreid_jax.core import types
from fedreid_jax.training import (
  agreement,
  build,
  checkpoint,
  compile_cache,
  divergence,
  library_logs,
  lock,
  recorder,
  run_files,
  signals,
  source_stats,
  summary,
  turns,
  warm_start,
)

MAX_BAD_ROUNDS = 3  # in a row, each with an update that was not finite


def train(
  config,
  workdir: str | os.PathLike[str],
  restart: bool = False,
  verbose: bool = False,
) -> dict[str, Any]:
  """Trains, or resumes, a run in a work directory, which it locks.

  >>> import fedreid_jax as fr
  >>> config = fr.load_config('dfh:smoke', rounds=1)
  >>> results = fr.train(config, workdir='runs/one_round')
  >>> results['rounds'], [entry['target'] for entry in results['summary']]
  (1, ['mall', 'mall', 'mall'])

  Several threads may train at once, each in a work directory of its own. Where
  runs use several devices, they train one after another. Compiled programs are
  kept in the user's cache directory, unless JAX already has one. Signals are
  left to the caller: a run that is ended resumes from its last checkpoint.

  Args:
    config: `ConfigDict`, of `load_config` for example.
    workdir: directory of the run; it is made if it does not exist.
    restart: delete an earlier run in this directory instead of resuming it.
    verbose: print what the command prints.

  Returns:
    The contents of `results.json`.

  Raises:
    ConfigError: for a configuration that cannot be run, or another one than
      that of the run in the directory.
    DataError: for images or labels that cannot be trained on or evaluated.
    IntegrityError: for a damaged run in the directory.
    DivergedError: when the updates are no longer finite.
    ResourceError: when memory, a device or the disk does not suffice.
    LockedError: when another run uses the directory.
    SystemExit: with 128 + signal after a clean save, in commands only.
  """
  validation.validate(config)
  compile_cache.use()
  with turns.taken(config), library_logs.muted():
    return _train(
      config, Path(workdir).expanduser().absolute(), restart, verbose
    )


def _train(config, workdir: Path, restart: bool, verbose: bool):
  agreement.require(
    'configuration or code',
    lambda: (
      parsing.flatten(config)
      | {'--workdir': str(workdir), '--restart': restart}
      | agreement.code()
    ),
  )
  resolved, held = _resolved(config), None
  with contextlib.ExitStack() as stack:
    if jax.process_index() == 0:
      held = stack.enter_context(lock.Lock(workdir))
      if not restart:
        run_files.check(workdir, resolved)
    record = stack.enter_context(
      recorder.Recorder(workdir, config.rounds, verbose)
    )
    saved = checkpoint.Checkpoints(workdir, run_files.digest(resolved))
    stack.callback(saved.close)
    run = _Run(config, record, saved, held)
    stack.callback(run.clock.close)
    if held:
      stack.enter_context(run_files.begun(workdir, restart, held.check))
    agreement.largest(0)  # nobody reads what another throws away
    run.describe(workdir)
    return run.all()


class _Run:
  """One process's view of a run: its parts and what it has measured."""

  def __init__(self, config, record, saved, held: lock.Lock | None):
    self.config, self.record, self.saved = config, record, saved
    self.held = held
    self.clock = recorder.Clock()
    self.setup = build.build(config)
    self.server, self.clients = self.setup.executor.init(
      self.setup.variables, self.setup.pretrained
    )
    self.names = [c.name for c in self.setup.federation.clients]
    self.evaluation: list[dict[str, Any]] = []
    self.course = divergence.Course()
    self.warnings: list[dict[str, Any]] = []
    self.bytes = {'up': Counter(), 'down': Counter()}
    self.images = self.bad_rounds = self.done = 0
    self.fresh = True

  def describe(self, workdir: Path) -> None:
    """Writes config.json and run.json, and prints the clients."""
    digest = self.setup.federation.digest
    described = workdir / run_files.DESCRIBED
    if described.exists():
      before = recorder.read_object(described, 'data_digest')
      if before['data_digest'] != digest:
        raise errors.DataError(
          'the images changed since this run began',
          str(workdir),
          'bring them back, or start again with --restart',
        )
    clients = self.setup.federation.clients
    table = [
      {
        'client': c.name,
        'images': c.num_images,
        'identities': c.num_identities,
        'cameras': len(np.unique(c.cameras)),
        'visible': int((c.modalities == 0).sum()),
        'infrared': int((c.modalities == 1).sum()),
      }
      for c in clients
    ]
    if jax.process_index() == 0:
      config = workdir / run_files.CONFIG
      recorder.write_json(config, _resolved(self.config))
      for target in self.setup.federation.targets:
        if target.splits:
          path = workdir / f'splits-{target.name}.json'
          recorder.write_json(path, target.splits)
      recorder.write_json(
        described,
        recorder.environment() | {'data_digest': digest, 'clients': table},
      )
    notices = self.setup.federation.notices
    for notice in (*notices, *self.setup.executor.notices):
      self.record.say(f'note: {notice}')
    self.record.table(
      'Clients',
      list(table[0]),
      [[str(v) for v in row.values()] for row in table],
    )

  def all(self) -> dict[str, Any]:
    """Runs every round that is left and returns the results."""
    config = self.config
    self._resume()
    self.clock.lap('setup')
    if self.fresh:
      if config.start_from:
        self.server, self.clients = warm_start.states(
          self.setup, self.server, config.start_from, config.data.targets
        )
      self.server, log = self.setup.executor.prepare(self.server, self.clients)
      self._count(log)
      self.clock.lap('train')
      self._save(self._evaluate())
    with signals.deferred() as caught:
      while self.done < config.rounds:
        self._round()
        self._after_round(caught)
    self._summary()
    return self._results()

  def _after_round(self, caught: Callable[[], int]) -> None:
    """Evaluates and saves if that is due, and ends if a signal asked for it."""
    config = self.config
    last = self.done == config.rounds
    score = None
    if last or self.done % config.evaluation.every == 0:
      score = self._evaluate()
    signal = agreement.largest(caught())
    due = last or score is not None
    if due or signal or self.done % config.checkpoint_every == 0:
      self._save(score)
    if signal:
      self.record.say(f'saved after round {self.done}, stopped by a signal')
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
    self.done = step
    self.evaluation = host['evaluation']
    self.bytes = {way: Counter(sent) for way, sent in host['bytes'].items()}
    self.images, self.bad_rounds = host['images'], host['bad_rounds']
    self.clock.seconds = host['seconds']
    self.course = divergence.Course(**host['course'])
    self.warnings = host['warnings']
    self.record.say(f'resumed after round {step}')

  def _save(self, score: float | None) -> None:
    host = {
      'source': self.config.data.source,
      'sources': list(self.config.data.sources),
      'clients': self.names,
      'evaluation': self.evaluation,
      'bytes': self.bytes,
      'images': self.images,
      'bad_rounds': self.bad_rounds,
      'seconds': self.clock.seconds,
      'course': self.course._asdict(),
      'warnings': self.warnings,
    }
    self._check_lock()
    self.saved.save(self.done, self.server, self.clients, host, score)

  def _check_lock(self) -> None:
    if self.held:
      self.held.check()

  def _count(self, log: dict[str, Any]) -> None:
    for way, sent in self.bytes.items():
      sent.update(log[way])

  def _round(self) -> None:
    lr = float(self.setup.schedule(self.done))
    self.server, log = self.setup.executor.round(
      self.server, self.clients, self.done
    )
    jax.block_until_ready(self.server)
    seconds = self.clock.lap('train')
    self._check_lock()
    self.done += 1
    self.images += log['images']
    self._count(log)
    names = self.names
    lost = [names[k] for k in log['clients'][~log['valid']]]
    values = log['metrics'] | {
      'seconds': seconds,
      'images': log['images'],
      'images_per_second': log['images'] / seconds,
      'lr': lr,
      'bytes_up': sum(log['up'].values()),
      'bytes_down': sum(log['down'].values()),
      'clients': [names[k] for k in log['clients']],
      'excluded': lost,
    }
    if 'weights' in log:
      values['weights'] = [float(w) for w in log['weights']]
    if 'entropy' in log:
      values['weights_entropy'] = log['entropy']
    if self.setup.executor.clustered:
      values['clusters'] = self._clusters()
    self.record.round(self.done, self.config.rounds, values)
    if log['fell_back']:
      self.record.say(
        f'round {self.done}: weights are zero or not finite, by size instead'
      )
    for what in self.setup.executor.warnings(log['metrics']):
      if what not in [warning['warning'] for warning in self.warnings]:
        self._warn(what)
    self.bad_rounds = self.bad_rounds + 1 if lost else 0
    if lost:
      self.record.say(
        f'round {self.done}: the update of {", ".join(lost)} is not finite; '
        'left out, weights renormalised'
      )
    if self.bad_rounds >= MAX_BAD_ROUNDS:
      raise errors.DivergedError(
        f'{self.bad_rounds} rounds in a row with an update that is not finite '
        f'({", ".join(lost)})',
        f'round {self.done}',
        divergence.to_lower(self.config),
      )
    if log['metrics']:
      self._follow(log)

  def _follow(self, log: dict[str, Any]) -> None:
    """Warns once of a model that came apart, and stops one beyond repair."""
    everyone = self.setup.federation.clients
    here = [everyone[k] for k in log['clients'][log['valid']]]
    guessed = sum(c.num_images / c.num_identities for c in here)
    self.course, found = divergence.follow(
      self.course,
      log['metrics']['loss'],
      log['median_loss'],
      log['metrics']['accuracy'],
      100.0 * guessed / sum(c.num_images for c in here),
    )
    if found is None:
      return
    fix = self._warn(found.what, shown=not found.fatal)
    if found.fatal:
      # The round does not count: a resumed run does it again.
      self.record.results(self._results() | {'rounds': self.done - 1})
      raise errors.DivergedError(found.what, f'round {self.done}', fix)

  def _warn(self, what: str, shown: bool = True) -> str:
    """Records and, unless an error follows, prints; returns what to lower."""
    fix = divergence.to_lower(self.config)
    warning = {'warning': what, 'fix': fix}
    self.record.event(self.done, 'warning', warning)
    self.warnings.append({'round': self.done, **warning})
    if shown:
      self.record.say(f'warning: {what} — round {self.done} — {fix}')
    return fix

  def _evaluate(self) -> float | None:
    """Evaluates, records and returns the mean score over targets, if any."""
    entries = self.setup.evaluate(self._models(), *self._source())
    self.clock.lap('eval')
    for entry in entries:
      entry['round'] = self.done
      self.record.event(self.done, 'eval', {**entry, **entry['metrics']})
      shown = '  '.join(
        f'{k} {v:.2f}'
        for k, v in entry['metrics'].items()
        if not k.endswith(recorder.APART)
      )
      self.record.say(f'{"":>6}{entry["target"]} {entry["model"]}: {shown}')
    self.evaluation += entries
    self.record.results(self._results())
    if not entries:
      return None
    served = [e for e in entries if not e['model'].startswith('client:')]
    scores = [summary.score(e['metrics']) for e in served or entries]
    return float(np.mean(scores))

  def _source(self) -> tuple:
    """Returns how to re-estimate moments before a test, if that is asked."""
    if self.config.evaluation.batch_stats == 'running':
      return ()
    groups = np.asarray(self.server.groups)
    executor = self.setup.executor
    return (source_stats.make(executor, groups, self.names, self.bytes),)

  def _clusters(self) -> dict[str, list[str]]:
    """Returns the clients of each of the server's models."""
    clusters: dict[str, list[str]] = {}
    for name, group in zip(
      self.names, self.server.groups.tolist(), strict=True
    ):
      clusters.setdefault(str(group), []).append(name)
    return clusters

  def _models(self) -> dict[str, types.Flat]:
    """Returns the models to evaluate: the server's, and clients' if kept."""
    models = build.named_models(
      self.server.shared,
      self.clients.personal,
      np.asarray(self.server.groups),
      self.names,
    )
    own = self.setup.executor.models_to_evaluate(self.clients)
    return models | {f'client:{self.names[k]}': x for k, x in own.items()}

  def _results(self) -> dict[str, Any]:
    seconds = self.clock.seconds
    busy = max(seconds['train'], 1e-9)
    clusters = {}
    if self.setup.executor.clustered:
      clusters = {'clusters': self._clusters()}
    return clusters | {
      'method': '+'.join(self.config.components),
      'config': self.config.name,
      'seed': self.config.seed,
      'rounds': self.done,
      'seconds': seconds | {'total': sum(seconds.values())},
      'images_per_second': self.images / busy,
      'communication_bytes': {
        w: sum(b.values()) for w, b in self.bytes.items()
      },
      'communication': self.bytes,
      'evaluation': self.evaluation,
      'warnings': self.warnings,
      'summary': summary.summarise(self.evaluation),
    }

  def _summary(self) -> None:
    """Prints the first model, the last round, and the labelled best rounds."""
    self.record.results(self._results())
    entries = [
      e for e in self.evaluation if e['round'] in (0, self.config.rounds)
    ]
    if not entries:
      return
    known = {(e['target'], e['model'], e['round']): e for e in self.evaluation}
    for best in summary.summarise(self.evaluation):
      if best['kind'] != 'last':
        target, model, rounds = (best[k] for k in ('target', 'model', 'rounds'))
        shown = {
          'model': f'{model}, {best["kind"]}',
          'round': ', '.join(map(str, rounds)),
          'metrics': best['metrics'],
        }
        entries.append(known[target, model, rounds[-1]] | shown)
    self.record.evaluations('+'.join(self.config.components), entries)


def _resolved(config) -> dict[str, Any]:
  return json.loads(config.to_json_best_effort())
