"""Descriptions and results of a run, for its files and the console.

FedReIDBench reports the mean over the three rounds with the best global model
(journal version, section 4.2.2) and returns the best of each client's models
(Algorithm 1, line 8); L2RW's results of entities are those of the best round.
Both choose rounds by rank-1. Here mAP chooses all rounds that are called best,
of tables and of the checkpoint `best` (`checkpoint_score`):

  last        every model in the last evaluated round;
  best        the models of the server in the round with the largest mean mAP
              over all targets, or over FedReIDBench's four large sets
              (`JUDGES`) where any of them is among the targets: the round of
              the checkpoint `best`;
  best_three  the global model: the mean over the three best rounds;
  own_best    a client's own model (federated or alone) in the round in which
              it has the largest mean mAP over its targets.

For classification, accuracy replaces mAP, and of equal rounds the later is
better. Tests on held-out persons of the clients (`evaluation.validation`)
choose the rounds where there are any. Without them rounds are chosen by test
results, which favours runs that are evaluated more often: only the last round
is then an unbiased result.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import model_names, types
from fedreid_jax.data import validation
from fedreid_jax.round import compose
from fedreid_jax.training import build, earlier_data, starts, whole_network
from fedreid_jax.training.files import recorder, run_files, run_secret
from fedreid_jax.training.reports import console_lines
from fedreid_jax.training.reports.monitor import Progress

CLASSIFIER = 'identity', 'accuracy'  # metrics of a client's classifier
JUDGES = ('market1501', 'dukemtmc', 'cuhk03-np', 'msmt17')

Entry = dict[str, Any]


def describe(
  config: Config,
  setup: build.Setup,
  record: recorder.Recorder,
  workdir: Path,
  root: bytes,
) -> None:
  """Writes config.json, the secret and run.json, prints notices and clients.

  Raises:
    DataError: when the images have changed since an earlier start of the run.
    IntegrityError: when the secret of an earlier start is missing.
  """
  digest = setup.federation.digest
  described, before = workdir / run_files.DESCRIBED, None
  if described.exists():
    before = recorder.read_object(described, earlier_data.OWN)
    if before[earlier_data.OWN] != digest:
      raise errors.DataError(
        'the images changed since this run began',
        str(workdir),
        'restore the original files, or start again with --restart',
      )
  table, rounds = clients(setup.federation.clients), setup.rounds
  simulated = rounds.simulated
  rows, caption = console_lines.clients(table)
  # In the order of `run_files.WRITTEN`: a run that is killed must leave no file
  # without the earlier ones.
  if jax.process_index() == 0:
    recorder.write_json(workdir / run_files.CONFIG, load.to_json(config))
    if setup.secret:
      run_secret.keep(config, workdir, root, described.exists())
    for target in setup.federation.targets:
      if target.splits:
        path = workdir / f'splits-{target.name}.json'
        recorder.write_json(path, target.splits)
    found = earlier_data.described(config, digest, before)
    found |= whole_network.described(config, setup.frozen, before)
    found |= {
      'clients': table,
      'uploads': rounds.uploads.name,
      'images_on_devices': bool(simulated and simulated.resident),
    }
    recorder.write_sealed(described, recorder.environment() | found)
  if rounds.uploads.gathered:
    record.say(rounds.uploads.describe())
  if simulated and not simulated.resident:
    record.say(simulated.describe_images())
  for line in starts.lines(config):
    record.say(line)
  for notice in notices(setup):
    record.say(f'note: {notice}')
  for line in setup.guarantee.lines(config.rounds):
    record.say(line)
  record.table(
    'Clients',
    list(table[0]),
    rows,
    ('cameras', 'visible', 'infrared'),
    caption,
  )


def notices(setup: build.Setup) -> list[str]:
  """What users should read when a run begins, of the images and the method."""
  own = compose.notices(setup.rounds.algorithm.components)
  return [*setup.federation.notices, *own]


def clients(federated: Sequence[types.ClientData]) -> list[dict[str, Any]]:
  """Returns a row for each client: its name, and the counts of its images."""
  return [
    {
      'client': c.name,
      'images': c.num_images,
      'identities': c.num_identities if c.labelled else '-',
      'cameras': len(np.unique(c.cameras)),
      'visible': int((c.modalities == 0).sum()),
      'infrared': int((c.modalities == 1).sum()),
    }
    for c in federated
  ]


def round_values(
  log: dict[str, Any], seconds: float, lr: float
) -> dict[str, Any]:
  """Returns the entries of a round in metrics.jsonl, without its clients."""
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
  log: dict[str, Any], names: list[str], form: recorder.Form
) -> dict[str, Any]:
  """The entries of a round on its clients: names and weights, or a summary.

  The size of a summary does not depend on the cohort.
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
    return {**counts, 'over_clients': recorder.over_clients(found)}
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


def hide_untrained(log: dict[str, Any], labelled: np.ndarray) -> None:
  """Removes figures of classifiers that no label trains from a log.

  Means of the round are then over the other clients, by their images.

  Args:
    labelled: number of images of every client of the cohort, 0 without labels.
  """
  if labelled.all():
    return
  counted = np.where(log['valid'], labelled, 0)
  for name in CLASSIFIER:
    if name not in log['per_client'] or name not in log['metrics']:
      continue
    column = log['per_client'][name]
    log['per_client'][name] = np.where(labelled, column, np.nan)
    del log['metrics'][name]
    if (kept := counted > 0).any():  # the figures of the others may be nan
      mean = np.average(column[kept], weights=counted[kept])
      log['metrics'][name] = float(mean)


def client_values(
  log: dict[str, Any], names: list[str]
) -> dict[str, dict[str, float]]:
  """Returns metrics of the clients with a finite update in a round, by name."""
  columns = log['per_client']
  if 'weights' in log:
    columns = columns | {'weight': log['weights']}
  return {
    names[client]: {
      name: float(found[k])
      for name, found in columns.items()
      # Without labels a client has no figures of a classifier.
      if not (name in CLASSIFIER and np.isnan(found[k]))
    }
    for k, client in enumerate(log['clients'])
    if log['valid'][k]
  }


def results(
  config: Config, progress: Progress, seconds: dict[str, float], privacy: str
) -> dict[str, Any]:
  """The content of results.json, without the clusters.

  `privacy` is the guarantee of the rounds that are done.
  """
  busy = max(seconds['train'], 1e-9)
  return {
    'method': '+'.join(config.components),
    'config': config.name,
    run_files.CONFIG_DIGEST: run_files.digests(load.to_json(config))[0],
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
    'summary': summarise(progress.evaluation),
  }


def print_summary(
  config: Config, record: recorder.Recorder, progress: Progress
) -> None:
  """Prints the metrics before training, of the last round, and of the best."""
  evaluation = progress.evaluation
  if not evaluation:
    return
  last = max(e['round'] for e in evaluation)
  known = {(e['target'], e['model'], e['round']): e for e in evaluation}
  best = [e for e in summarise(evaluation) if e['kind'] != 'last']
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
  chosen = f'best rounds were chosen by {_judge(best[0]["metrics"])} on'
  if 'targets' in by:
    record.say(f'{chosen} the targets, the last one was not')
  elif 'validation' in by:
    record.say(f'{chosen} held-out identities of the clients')


def score(metrics: dict[str, float]) -> float:
  """Returns the figure that judges a round: mAP, else accuracy."""
  return metrics[_judge(metrics)]


def _judge(metrics: dict[str, float]) -> str:
  return 'mAP' if 'mAP' in metrics else 'accuracy'


def summarise(evaluation: list[Entry]) -> list[Entry]:
  """One element per target, model and kind, see the module.

  An element has `target`, `model`, `kind`, the `rounds` that were averaged,
  `chosen_on` ('targets', 'validation', or '' for the last round), and
  `metrics`. Evaluations before training count only if there are no others.
  """
  after = [e for e in evaluation if e['round'] > 0] or evaluation
  if not after:
    return []
  last = max(e['round'] for e in after)
  found = _mean_over(after, [last], 'last', '')
  served = [e for e in after if not _is_own(e)]
  one = [e for e in after if e['model'] == model_names.GLOBAL]
  for kind, number, models in (('best_three', 3, one), ('best', 1, served)):
    if models:
      best = _best_rounds(served, number)
      found += _mean_over(models, best, kind, chosen_on(served))
  return found + _best_of_clients(after)


def checkpoint_score(entries: list[Entry]) -> float | None:
  """The mean of mAP (or accuracy) that judges a round, None without a test.

  It is over the tests on held-out persons, else over the large targets, else
  over all targets, of the models of the server, else of the clients.
  """
  served = [e for e in entries if not _is_own(e)] or entries
  scores = [score(e['metrics']) for e in _judges(served)]
  return float(np.mean(scores)) if scores else None


def held_out(entries: list[Entry]) -> dict[str, float]:
  """The means of the metrics of the tests on held-out persons.

  They are those of the models of the server, else of the clients. A metric that
  a test lacks is left out.
  """
  own = [e for e in entries if validation.is_validation(e['target'])]
  found = [e['metrics'] for e in own if not _is_own(e)]
  found = found or [e['metrics'] for e in own]
  names = set.intersection(*map(set, found)) if found else set()
  return {n: float(np.mean([m[n] for m in found])) for n in sorted(names)}


def chosen_on(entries: list[Entry]) -> str:
  """Returns the tests that choose rounds: 'validation', or else 'targets'."""
  held_out = any(validation.is_validation(e['target']) for e in entries)
  return 'validation' if held_out else 'targets'


def _judges(entries: list[Entry]) -> list[Entry]:
  """The entries that choose rounds."""
  own = [e for e in entries if validation.is_validation(e['target'])]
  return own or [e for e in entries if e['target'] in JUDGES] or entries


def _is_own(entry: Entry) -> bool:
  return bool(model_names.client_of(entry['model']))


def _best_of_clients(entries: list[Entry]) -> list[Entry]:
  """The best round of every client's own model."""
  own: dict[str, list[Entry]] = defaultdict(list)
  for entry in filter(_is_own, entries):
    own[entry['model']].append(entry)
  found = []
  for _, same in sorted(own.items()):
    found += _mean_over(
      same, _best_rounds(same, 1), 'own_best', chosen_on(same)
    )
  return found


def _best_rounds(entries: list[Entry], number: int) -> list[int]:
  by_round: dict[int, list[Entry]] = defaultdict(list)
  for entry in entries:
    by_round[entry['round']].append(entry)
  scores = {r: checkpoint_score(tested) for r, tested in by_round.items()}
  # Of equal rounds the later, as the best of the checkpoints.
  order = sorted(scores, key=lambda r: (scores[r], r), reverse=True)
  return sorted(order[:number])


def _mean_over(entries: list[Entry], rounds: list[int], kind: str, by: str):
  chosen: dict[tuple[str, str], list[Entry]] = defaultdict(list)
  for entry in entries:
    if entry['round'] in rounds:
      chosen[entry['target'], entry['model']].append(entry)
  return [
    {
      'target': target,
      'model': model,
      'kind': kind,
      'rounds': rounds,
      'chosen_on': by,
      'metrics': {
        name: float(np.mean([e['metrics'][name] for e in same]))
        for name in same[0]['metrics']
        # An evaluator with a period may have run in some of the rounds only.
        if not name.endswith('_std') and all(name in e['metrics'] for e in same)
      },
    }
    for (target, model), same in sorted(chosen.items())
  ]
