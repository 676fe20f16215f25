"""Evaluation of the models of a saved run, on its targets or on others."""

import copy
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load as config_lib
from fedreid_jax.config import parsing
from fedreid_jax.core import types
from fedreid_jax.data import load as data_lib
from fedreid_jax.data.federation import Federation
from fedreid_jax.evaluation import evaluator
from fedreid_jax.round import compose
from fedreid_jax.training import build, engine
from fedreid_jax.training.clients import named_models, source_stats
from fedreid_jax.training.files import (
  evaluation_file,
  recorder,
  restored,
  run_files,
)
from fedreid_jax.training.processes import compile_cache, library_logs, turns
from fedreid_jax.training.reports import summary


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
  config = config_lib.load_saved(folder)
  config = config_lib.change(config, parsing.flatten(dict(overrides or {})))
  compile_cache.use()
  with turns.taken(config), library_logs.muted():
    return evaluate_run(config, folder, str(checkpoint), verbose)


def evaluate_run(
  config, workdir: Path, which: str, verbose: bool = False
) -> list[dict[str, Any]]:
  """Evaluates a checkpoint and writes `evaluation-STEP-TARGETS.json`.

  Args:
    config: validated `ConfigDict`; its targets are ranked.
    workdir: of a run.
    which: 'latest', 'best' or a step.
    verbose: print the entries as a table.

  Raises:
    IntegrityError: when there is no such checkpoint, or it does not verify or
      fit the model.
  """
  asked = config
  config, (step, models, groups, host) = restore(config, workdir, which)
  entries = evaluate_models(config, models, groups, host['clients'])
  for entry in entries:
    entry['round'] = step
  record = recorder.Recorder(workdir, config.rounds, verbose)
  if entries:
    record.evaluations('+'.join(config.components), entries)
  if which == 'best':
    record.say(
      f'note: checkpoint {step} was chosen as the best on {_chosen_on(workdir)}'
    )
  if jax.process_index() == 0:
    path = evaluation_file.write(asked, workdir, which, step, entries)
    record.say(f'written: {path}')
  return entries


def _chosen_on(workdir: Path) -> str:
  """Returns the tests that chose the best checkpoint, for a message."""
  results = recorder.read_object(workdir / recorder.RESULTS, 'evaluation')
  if summary.chosen_on(results['evaluation']) == 'validation':
    return 'held-out identities of the clients'
  return "the run's targets"


def restore(config, workdir: Path, which: str) -> tuple[Any, restored.Restored]:
  """Returns the models of a checkpoint and the configuration to test them.

  Args:
    config: validated `ConfigDict`; not modified.
    workdir: of a run.
    which: 'latest', 'best' or a step.

  Raises:
    IntegrityError: when there is no such checkpoint, or it does not verify.
  """
  with run_files.checkpoints_of(workdir) as saved:
    found = restored.restore(saved, which)
  config = copy.deepcopy(config)
  if found.host['source'] == config.data.source:
    # The check of targets must know the domains that trained the model.
    config.data.sources = tuple(found.host['sources'])
  return config, found


def evaluate_models(
  config,
  models: dict[str, types.Flat],
  groups: np.ndarray,
  names: Sequence[str],
) -> list[dict[str, Any]]:
  """Tests models from a checkpoint on the targets of a configuration.



  Args:
    config: all of it.
    models: variables by name; parameters that were never shared may be missing.
    groups: group of every client of the run, int32 `[N]`.
    names: of these clients, `N`.

  Raises:
    DataError: when the clients of the configuration are not those of the run.
    ConfigError: when no client has images of a modality to be measured.
  """
  extra = build.load_evaluators(config)
  rule = config.evaluation.batch_stats
  from_source = rule in source_stats.MEASURED
  # Clients' images are read only where moments are measured on them.
  federation = data_lib.load(
    config.data,
    from_source,
    build.arguments(config, config.data.source),
    config.evaluation.validation,
  )
  any_model = models[named_models.choose(models, '')]
  network = restored.network(config, federation, any_model)
  model, variables, transforms, mesh = network
  build.check_classifier(federation, any_model)
  shared = compose.shared_leaves(build.load_components(config))
  build.check_ranked(config, variables, shared)
  run = evaluator.make(
    config.evaluation, federation.targets, model, transforms, mesh, extra
  )
  # Parameters that were never shared keep their initial values, on which no
  # ranked feature depends (`build.check_ranked`).
  models = {n: {**variables, **own} for n, own in models.items()}
  if not from_source:
    return run(models)
  return run(models, source(config, federation, network, groups, names))


def source(
  config,
  federation: Federation,
  network: restored.Network,
  groups: np.ndarray,
  names: Sequence[str],
) -> evaluator.Source:
  """Builds `source_stats.make` of the clients of a run for its checkpoint.

  Args:
    config: all of it.
    federation: with the clients' images.
    network: of the models.
    groups: group of every client of the run, int32 `[N]`.
    names: of these clients, `N`.

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
  executor = engine.make_executor(
    config,
    federation,
    network.model,
    components,
    network.transforms,
    network.mesh,
  )
  # The run has ended, so that these bytes are counted for nobody.
  sent = {'up': Counter(), 'down': Counter()}
  return source_stats.make(executor, groups, names, sent, rule)
