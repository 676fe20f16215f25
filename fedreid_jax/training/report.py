"""Descriptions and results of a run, for its files and the console."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.training import build, recorder, run_files, summary
from fedreid_jax.training.progress import Progress


def resolved(config) -> dict[str, Any]:
  """Returns a configuration as the object in `config.json`."""
  return json.loads(config.to_json_best_effort())


def describe(
  config, setup: build.Setup, record: recorder.Recorder, workdir: Path
) -> None:
  """Writes config.json and run.json, and prints notices and clients.

  Raises:
    DataError: when the images are not those of an earlier start of the run.
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
  table = [
    {
      'client': c.name,
      'images': c.num_images,
      'identities': c.num_identities,
      'cameras': len(np.unique(c.cameras)),
      'visible': int((c.modalities == 0).sum()),
      'infrared': int((c.modalities == 1).sum()),
    }
    for c in setup.federation.clients
  ]
  if jax.process_index() == 0:
    recorder.write_json(workdir / run_files.CONFIG, resolved(config))
    for target in setup.federation.targets:
      if target.splits:
        path = workdir / f'splits-{target.name}.json'
        recorder.write_json(path, target.splits)
    recorder.write_json(
      described,
      recorder.environment() | {'data_digest': digest, 'clients': table},
    )
  for notice in (*setup.federation.notices, *setup.executor.notices):
    record.say(f'note: {notice}')
  record.table(
    'Clients',
    list(table[0]),
    [[str(v) for v in row.values()] for row in table],
  )


def round_values(
  log: dict[str, Any], names: list[str], seconds: float, lr: float
) -> dict[str, Any]:
  """Returns the entries of a round in metrics.jsonl.

  Args:
    log: of the round.
    names: of all clients.
    seconds: of the round.
    lr: learning rate of the round.
  """
  values = log['metrics'] | {
    'seconds': seconds,
    'images': log['images'],
    'images_per_second': log['images'] / seconds,
    'lr': lr,
    'bytes_up': sum(log['up'].values()),
    'bytes_down': sum(log['down'].values()),
    'clients': [names[k] for k in log['clients']],
    'excluded': [names[k] for k in log['clients'][~log['valid']]],
  }
  if 'weights' in log:
    values['weights'] = [float(w) for w in log['weights']]
  if 'entropy' in log:
    values['weights_entropy'] = log['entropy']
  return values


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
  config, progress: Progress, seconds: dict[str, float]
) -> dict[str, Any]:
  """Returns the content of results.json but for the clusters."""
  busy = max(seconds['train'], 1e-9)
  return {
    'method': '+'.join(config.components),
    'config': config.name,
    'seed': config.seed,
    'rounds': progress.done,
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


def print_summary(config, record: recorder.Recorder, evaluation: list) -> None:
  """Prints the first model, the last round, and the labelled best rounds."""
  entries = [e for e in evaluation if e['round'] in (0, config.rounds)]
  if not entries:
    return
  known = {(e['target'], e['model'], e['round']): e for e in evaluation}
  for best in summary.summarise(evaluation):
    if best['kind'] != 'last':
      target, model, rounds = (best[k] for k in ('target', 'model', 'rounds'))
      shown = {
        'model': f'{model}, {best["kind"]}',
        'round': ', '.join(map(str, rounds)),
        'metrics': best['metrics'],
      }
      entries.append(known[target, model, rounds[-1]] | shown)
  record.evaluations('+'.join(config.components), entries)
