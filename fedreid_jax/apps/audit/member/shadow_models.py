"""Shadow models: the configuration of a run, trained on half of the persons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.audit.member.shadow_persons import CASES, Persons
from fedreid_jax.training import build, loaded_run, loop
from fedreid_jax.training.loaded_run import LoadedRun

RANDOM = ('poisson', 'poisson_pk')  # samplers with a probability for a unit


def check(run: LoadedRun) -> None:
  """Refuses a run whose shadow models would be uninformative.

  Raises:
    ConfigError: for the first field that rules out the audit.
  """
  config = run.config
  for wrong, what, field, fix in (
    (
      run.name != 'global',
      f'{config.name} has no single model of the server',
      '--attack',
      'give a run with one global model',
    ),
    (
      config.start_from,
      'all shadow models would start from models that know every person',
      'start_from',
      'give a run without it',
    ),
    (
      config.data.poison,
      'labels of poisoned images are not those of persons',
      'data.poison',
      'give a run without it',
    ),
    (
      config.local.sampler in RANDOM and config.local.identities % 2,
      f'half of {config.local.identities} persons in a step is no whole number',
      'local.identities',
      'give a run with an even number',
    ),
    (
      config.evaluation.batch_stats != 'running',
      'the attack uses running statistics, and the evaluation of the run does '
      'not',
      'evaluation.batch_stats',
      "give a run with 'running'",
    ),
  ):
    if wrong:
      raise errors.ConfigError(what, field, fix)


def scores(
  run: LoadedRun,
  persons: Sequence[Persons],
  halves: Sequence[np.ndarray],
  folder: Path,
  seed: int,
) -> dict[str, np.ndarray]:
  """Trains a model on halves of the persons and returns the scores of all.

  Args:
    run: whose configuration is trained.
    persons: of each client.
    halves: whether each person is a member, by client.
    folder: of the model; a training that was stopped continues there.
    seed: of the training.
  """
  config = run.config.copy_and_resolve_references()
  config.seed, config.track = seed, ()
  # A step with half as many persons keeps the sampling rate of the run, and
  # thereby the noise of DP-SGD.
  if config.local.sampler in RANDOM:
    config.local.identities //= 2
    config.local.batch //= 2
  members = run.federation._replace(
    clients=tuple(
      one.members(half) for one, half in zip(persons, halves, strict=True)
    ),
    targets=(),
  )

  def make(given: Any, root: bytes | None) -> Any:
    return build.assemble(given, members, root=root)

  loop.run_rounds(make, config, folder)
  shadow = loaded_run.load(config, folder, federation=members)
  return {
    case: np.concatenate([one.scores(shadow.ranked, case) for one in persons])
    for case in CASES
  }
