"""Evaluation of the models of a saved run, on its targets or on others."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load as config_lib
from fedreid_jax.config import parsing
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import types
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.federation import Federation
from fedreid_jax.evaluation import evaluator
from fedreid_jax.round import compose
from fedreid_jax.round.client_store import OnDemand
from fedreid_jax.training import (
  build,
  calibration,
  engine,
  named_models,
  source_stats,
  whole_network,
)
from fedreid_jax.training.files import recorder, run_files
from fedreid_jax.training.processes import process
from fedreid_jax.training.reports import report

LONGEST = 60  # letters of the targets in the name of a file
# Moments that `modality_gap` compares.
RULES = ('running', *source_stats.MEASURED)
GAP = ('offset', 'rest', 'persons')
COLUMNS = ('target', 'model', 'moments', 'mAP', *GAP)


def evaluate(
  workdir: str | os.PathLike[str],
  overrides: Mapping[str, Any] | None = None,
  *,
  checkpoint: str | int = 'latest',
  verbose: bool = False,
) -> list[dict[str, Any]]:
  """Evaluates a checkpoint and writes `evaluation-STEP-TARGETS.json`.

  >>> import fedreid_jax as fr
  >>> (entry,) = fr.evaluate('runs/first', {'evaluation.metric': 'cosine'})
  >>> entry['target'], entry['distance'], 0 < entry['metrics']['mAP'] <= 100
  ('mall', 'cosine', True)

  Args:
    workdir: of a run.
    overrides: new values of fields of its configuration by their full names,
      `{'data.targets': ('park',)}` for example.
    checkpoint: 'latest', 'best', or the number of a round that was saved.
    verbose: print the entries as a table.

  Returns:
    An entry of each target and model, as in `results.json`.

  Raises:
    IntegrityError: when there is no such run or checkpoint, or it is damaged.
    ConfigError: for a field that does not exist, or a value that cannot be run.
    DataError: for images that cannot be evaluated.
  """
  folder = Path(workdir).expanduser().absolute()
  config = config_lib.with_fields(
    config_lib.load_saved(folder), parsing.flatten(dict(overrides or {}))
  )
  with process.turn(config):
    return evaluate_run(config, folder, str(checkpoint), verbose)


def evaluate_run(
  config: Config,
  workdir: Path,
  which: str,
  verbose: bool = False,
  strangers: Path | None = None,
) -> list[dict[str, Any]]:
  """Evaluates as `evaluate` does, on the targets of a validated `config`.

  With `strangers`, the models are tested on held-out persons of the clients as
  well, if the run has any, and `calibration` writes this file.

  Raises:
    IntegrityError: no such checkpoint, or it does not verify or fit the model.
    ConfigError: for a configuration that `calibration.check` refuses.
  """
  asked = config
  config, (step, models, groups, host) = restore(config, workdir, which)
  collector = None
  if strangers:
    calibration.check(config, strangers)
    run = config_lib.load_saved(workdir)
    share = calibration.held_out(asked, run)
    config = replace(
      config, evaluation=replace(config.evaluation, validation=share)
    )
    collector = calibration.Collector()
  entries = evaluate_models(config, models, groups, host['clients'], collector)
  for entry in entries:
    entry['round'] = step
  record = recorder.Recorder(workdir, config.rounds, verbose)
  if entries:
    record.evaluations('+'.join(config.components), entries)
  if which == 'best':
    results = run_files.results(workdir, 'evaluation')
    on = "the run's targets"
    if report.chosen_on(results['evaluation']) == 'validation':
      on = 'held-out identities of the clients'
    record.say(f'note: checkpoint {step} was chosen as the best on {on}')
  if jax.process_index() == 0:
    path = write(asked, workdir, which, step, entries)
    record.say(f'written: {path}')
    if strangers and collector:
      record.say(f'strangers: {collector.write(strangers, config, models)}')
      record.say(f'written: {strangers}')
  return entries


def restore(
  config: Config, workdir: Path, which: str
) -> tuple[Config, named_models.Restored]:
  """Returns the models of a checkpoint and the configuration to test them.

  Raises:
    IntegrityError: when there is no such checkpoint, or it does not verify.
  """
  saved = run_files.checkpoints_of(workdir)
  found = named_models.restore(saved, which)
  if found.host['source'] == config.data.source:
    # The check of targets must know the domains that trained the model.
    sources = tuple(found.host['sources'])
    config = replace(config, data=replace(config.data, sources=sources))
  return whole_network.pinned(config, workdir), found


def evaluate_models(
  config: Config,
  models: Mapping[str, types.Flat],
  groups: np.ndarray,
  names: Sequence[str],
  seen: evaluator.Seen | None = None,
) -> list[dict[str, Any]]:
  """Tests models from a checkpoint; parameters never shared may be missing.

  With `seen`, which receives the ranked features, held-out persons of the
  clients are tested as well.

  Raises:
    DataError: when the clients of the configuration are not those of the run.
    ConfigError: when no client has images of a modality to be measured.
  """
  extra = build.load_evaluators(config)
  rule = config.evaluation.batch_stats
  from_source = rule in source_stats.MEASURED
  # Clients' images are read only where moments are measured on them, or where
  # some of their persons are tested.
  held_out = seen is not None and config.evaluation.validation > 0
  federation = data_lib.load(
    config.data,
    from_source or held_out,
    build.arguments(config, config.data.source),
    config.evaluation.validation,
  )
  any_model = models[named_models.choose(models, '')]
  network = named_models.network(config, federation, any_model)
  model, variables, transforms, mesh = network
  build.check_classifier(federation, any_model)
  shared = compose.shared_leaves(build.load_components(config))
  build.check_ranked(config, variables, shared)
  run = evaluator.make(
    config.evaluation, federation.targets, model, transforms, mesh, extra
  )
  # Parameters that were never shared keep their initial values, on which no
  # ranked feature depends (`build.check_ranked`).
  whole = OnDemand(models, lambda name: {**variables, **models[name]})
  if not from_source:
    return run(whole, seen=seen)
  measured = source(config, federation, network, groups, names)
  return run(whole, measured, seen=seen)


def source(
  config: Config,
  federation: Federation,
  network: named_models.Network,
  groups: np.ndarray,
  names: Sequence[str],
) -> evaluator.Source:
  """Builds `source_stats.make` of the clients of a run for its checkpoint.

  Raises:
    DataError: when the clients of the configuration are not those of the run.
    ConfigError: when no client has images of a modality to be measured.
  """
  rule = config.evaluation.batch_stats
  source_stats.check(rule, federation.clients)
  if [c.name for c in federation.clients] != list(names):
    raise errors.DataError(
      f'clients {", ".join(c.name for c in federation.clients)} where the run '
      f'has {", ".join(names)}',
      'evaluation.batch_stats',
      "set it to 'running', or give the data of the run",
    )
  components = build.load_components(config)
  rounds = engine.make_rounds(
    config,
    federation,
    network.model,
    components,
    network.transforms,
    network.mesh,
  )
  # The run has ended, so that these bytes are counted for nobody.
  sent = {'up': Counter(), 'down': Counter()}
  assert rounds.simulated
  return source_stats.make(rounds.simulated, groups, names, sent, rule)


def write(
  config: Config, workdir: Path, which: str, step: int, entries: Sequence[Any]
) -> Path:
  """Writes `evaluation-STEP-TARGETS.json` and returns its path.

  The file has the `checkpoint` as it was asked for, its `round`, the
  `overrides` (fields in which the configuration differs from that of the run)
  and the `entries`. The same evaluation replaces its file; another evaluation
  of the same round and targets gets a number at the end of the name.
  """
  before = parsing.flatten(config_lib.load_saved(workdir))
  now = parsing.flatten(config_lib.identity(config))
  found = {
    'checkpoint': which,
    'round': step,
    'overrides': {k: now[k] for k in sorted(now) if now[k] != before.get(k)},
    'entries': list(entries),
  }
  names = '+'.join(dict.fromkeys(entry['target'] for entry in entries))
  stem = re.sub(r'[^\w.+-]+', '_', names)[:LONGEST] or 'none'
  path = workdir / f'evaluation-{step}-{stem}.json'
  for number in itertools.count(2):
    if not path.exists() or _same(path, found):
      break
    path = workdir / f'evaluation-{step}-{stem}-{number}.json'
  recorder.write_sealed(path, found)
  return path


def _same(path: Path, found: dict[str, Any]) -> bool:
  try:
    before = recorder.read_object(path)
  except errors.IntegrityError:
    return True  # it was not completely written, and is replaced
  now = json.loads(json.dumps(found))  # lists in place of tuples
  return all(before.get(key) == now[key] for key in ('checkpoint', 'overrides'))


def modality_gap(
  config: Config, workdir: Path, which: str, verbose: bool = False
) -> list[dict[str, Any]]:
  """Writes `modality-gap-STEP.json` and returns its rows.

  A model is evaluated with its running moments of batch normalisation, with
  those of all images of the clients and with those of each modality
  (`evaluation.batch_stats`). The report has the mAP and the distance between
  the modalities (`evaluators.modality_gap`) for every target with both.

  Raises:
    ConfigError: when the clients or the targets have one modality only.
    IntegrityError: no such checkpoint, or it does not verify or fit the model.
  """
  config, found = restore(config, workdir, which)
  rows: list[dict[str, Any]] = []
  for rule in RULES:
    measured = replace(
      config.evaluation, batch_stats=rule, extra=('modality_gap',)
    )
    config = replace(config, evaluation=measured)
    entries = evaluate_models(
      config, found.models, found.groups, found.host['clients']
    )
    for entry in entries:
      metrics = entry['metrics']
      if 'gap_offset' in metrics:
        names = {k: entry[k] for k in ('target', 'model')}
        score = {'moments': rule, 'mAP': metrics['mAP']}
        gap = {name: metrics[f'gap_{name}'] for name in GAP}
        rows.append(names | score | gap)
    if not rows:
      raise errors.ConfigError(
        'no target has persons with images of both modalities',
        'data.targets',
        'give a target with visible and infrared images',
      )
  rows.sort(key=lambda row: (row['target'], row['model']))
  if jax.process_index() == 0:
    recorder.write_json(workdir / f'modality-gap-{found.step}.json', rows)
  record = recorder.Recorder(workdir, config.rounds, verbose)
  record.table(
    'distance between modalities, in spreads of persons',
    list(COLUMNS),
    [
      [f'{x:.2f}' if isinstance(x, float) else str(x) for x in cells]
      for cells in ([row[column] for column in COLUMNS] for row in rows)
    ],
  )
  return rows
