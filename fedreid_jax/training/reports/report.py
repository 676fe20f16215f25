"""Descriptions and results of a run, for its files and the console."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import saved_config
from fedreid_jax.core import types
from fedreid_jax.data import validation
from fedreid_jax.round import component_reports
from fedreid_jax.training import build
from fedreid_jax.training.files import recorder, run_files, run_secret
from fedreid_jax.training.reports import summary
from fedreid_jax.training.reports.progress import Progress
from fedreid_jax.training.tracking import client_metrics


def describe(
  config,
  setup: build.Setup,
  record: recorder.Recorder,
  workdir: Path,
  root: bytes,
) -> None:
  """Writes config.json, the secret and run.json, prints notices and clients.

  Args:
    config: of the run.
    setup: of the run.
    record: of the run.
    workdir: of the run.
    root: of the secret of the run.

  Raises:
    DataError: when the images have changed since an earlier start of the run.
    IntegrityError: when the secret of an earlier start is missing.
  """
  digest = setup.federation.digest
  described = workdir / run_files.DESCRIBED
  if described.exists():
    before = recorder.read_object(described, 'data_digest')
    if before['data_digest'] != digest:
      raise errors.DataError(
        'the images changed since this run began',
        str(workdir),
        'restore the original files, or start again with --restart',
      )
  table = clients(setup.federation.clients)
  # In the order of `run_files.WRITTEN`: a run that is killed must leave no file
  # without the earlier ones.
  if jax.process_index() == 0:
    recorder.write_json(
      workdir / run_files.CONFIG, saved_config.to_json(config)
    )
    if setup.secret:
      run_secret.keep(config, workdir, root, described.exists())
    for target in setup.federation.targets:
      if target.splits:
        path = workdir / f'splits-{target.name}.json'
        recorder.write_json(path, target.splits)
    found = {
      'data_digest': digest,
      'clients': table,
      'uploads': setup.executor.uploads.name,
      'images_on_devices': setup.executor.resident,
    }
    recorder.write_json(described, recorder.environment() | found)
  if setup.executor.uploads.gathered:
    record.say(setup.executor.uploads.describe())
  if not setup.executor.resident:
    record.say(setup.executor.describe_images())
  components = setup.executor.algorithm.components
  own = component_reports.notices(components)
  for notice in (*setup.federation.notices, *own):
    record.say(f'note: {notice}')
  record.say(f'privacy: {setup.guarantee.statement(config.rounds)}')
  record.table(
    'Clients',
    list(table[0]),
    [[str(v) for v in row.values()] for row in table],
    ('cameras', 'visible', 'infrared'),
  )


def clients(federated: Sequence[types.ClientData]) -> list[dict[str, Any]]:
  """Returns a row for each client: its name, and the counts of its images."""
  return [
    {
      'client': c.name,
      'images': c.num_images,
      'identities': c.num_identities,
      'cameras': len(np.unique(c.cameras)),
      'visible': int((c.modalities == 0).sum()),
      'infrared': int((c.modalities == 1).sum()),
    }
    for c in federated
  ]


def round_values(
  log: dict[str, Any], seconds: float, lr: float
) -> dict[str, Any]:
  """Returns the entries of a round in metrics.jsonl, without its clients.

  Args:
    log: of the round.
    seconds: of the round.
    lr: learning rate of the round.
  """
  values = log['metrics'] | {
    'seconds': seconds,
    'images': log['images'],
    'images_per_second': log['images'] / max(seconds, 1e-9),
    'lr': lr,
    'bytes_up': sum(log['up'].values()),
    'bytes_down': sum(log['down'].values()),
  }
  if timed := log.get('timetable'):
    values['simulated_s'] = timed.end
    if timed.staleness.any():
      values['staleness'] = float(timed.staleness.mean())
  if 'entropy' in log:
    values['weights_entropy'] = log['entropy']
  return values


def cohort_values(
  log: dict[str, Any], names: list[str], form: client_metrics.Form
) -> dict[str, Any]:
  """Returns the entries of a round in metrics.jsonl on its clients.

  Args:
    log: of the round.
    names: of all clients.
    form: `lines` returns names and weights, others the numbers of clients and
      a summary, whose size does not depend on the cohort.
  """
  values = {
    'clients': [names[k] for k in log['clients']],
    'excluded': excluded(log, names),
  }
  if timed := log.get('timetable'):
    values['late'] = [names[k] for k in timed.late]
  if form != 'lines':
    counts = {f'num_{name}': len(found) for name, found in values.items()}
    found = client_values(log, names)
    return {**counts, 'over_clients': client_metrics.summary(found)}
  if 'weights' in log:
    return {**values, 'weights': [float(w) for w in log['weights']]}
  return values


def excluded(log: dict[str, Any], names: list[str]) -> list[str]:
  """Returns the clients whose update a round left out."""
  return [names[k] for k in log['clients'][~log['valid']]]


def out_of_range(log: dict[str, Any], names: list[str]) -> list[str]:
  """Returns the clients whose finite update is out of range of the sums."""
  far = log.get('out_of_range', np.zeros(len(log['clients']), bool))
  return [names[k] for k in log['clients'][far]]


def client_values(
  log: dict[str, Any], names: list[str]
) -> dict[str, dict[str, float]]:
  """Returns metrics of the clients with a finite update in a round, by name."""
  columns = log['per_client']
  if 'weights' in log:
    columns = columns | {'weight': log['weights']}
  return {
    names[client]: {name: float(found[k]) for name, found in columns.items()}
    for k, client in enumerate(log['clients'])
    if log['valid'][k]
  }


def clusters(groups: np.ndarray, names: list[str]) -> dict[str, list[str]]:
  """Returns the clients of each model of the server.

  Args:
    groups: group of every client, int32 `[N]`.
    names: of the clients, `N`.
  """
  found: dict[str, list[str]] = {}
  for name, group in zip(names, groups.tolist(), strict=True):
    found.setdefault(str(group), []).append(name)
  return found


def results(
  config, progress: Progress, seconds: dict[str, float], privacy: str
) -> dict[str, Any]:
  """Returns the content of results.json, without the clusters.

  Args:
    config: of the run.
    progress: of the run.
    seconds: of each phase.
    privacy: the guarantee of the rounds that are done.
  """
  busy = max(seconds['train'], 1e-9)
  return {
    'method': '+'.join(config.components),
    'config': config.name,
    'seed': config.seed,
    'rounds': progress.done,
    'privacy': privacy,
    'seconds': seconds | {'total': sum(seconds.values())},
    'images_per_second': progress.images / busy,
    'communication_bytes': {
      way: sum(sent.values()) for way, sent in progress.bytes.items()
    },
    'communication': progress.bytes,
    'evaluation': progress.evaluation,
    'warnings': progress.warnings,
    'summary': summary.summarise(progress.evaluation),
  }


def print_summary(
  config, record: recorder.Recorder, progress: Progress
) -> None:
  """Prints the metrics before training, of the last round, and of the best."""
  evaluation = progress.evaluation
  if not evaluation:
    return
  last = max(e['round'] for e in evaluation)
  known = {(e['target'], e['model'], e['round']): e for e in evaluation}
  best = [e for e in summary.summarise(evaluation) if e['kind'] != 'last']
  entries = [e for e in evaluation if e['round'] in (0, last)]
  for one in best:
    target, model, rounds = (one[k] for k in ('target', 'model', 'rounds'))
    shown = {
      'model': f'{model}, {one["kind"].replace("_", " ")}',
      'round': ', '.join(map(str, rounds)),
      'metrics': one['metrics'],
    }
    entries.append(known[target, model, rounds[-1]] | shown)
  tests = [e for e in entries if not validation.is_validation(e['target'])]
  caption = [
    f'warning: {one["warning"]}'
    for one in progress.warnings
    if one['round'] == last
  ]
  record.evaluations('+'.join(config.components), tests or entries, caption)
  by = {one['chosen_on'] for one in best}
  if 'targets' in by:
    record.say('best rounds were chosen on the targets, the last one was not')
  elif 'validation' in by:
    record.say('best rounds were chosen on held-out identities of the clients')
