"""Audit of membership: was a person among those that a model was trained on?

The audit trains the configuration of a run several times, each time with a
random half of the persons of every client (`shadow_persons`), and attacks each
of these models with the others (`membership`). The attacker knows the recipe,
has models that were trained with and without each person, and images of the
person:

  other images  on which no model was trained.
  same images   those on which a model with the person was trained: an upper
                bound.

The positive control is a small network that learns a few persons by heart, and
the attacker has the same images (`member_control`). The negative control asks
for other random halves than those of the training.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.data.federation import Federation
from fedreid_jax.privacy import (
  detection,
  member_control,
  membership,
  shadow_persons,
)
from fedreid_jax.privacy.detection import Detection
from fedreid_jax.privacy.shadow_persons import Persons
from fedreid_jax.training import build, loaded_run, loop

SUCCESS = 0.9  # area of the positive control
NEGATIVE = 'negative control: other halves'
Tell = Callable[[str], None]


class Audited(NamedTuple):
  """Results of the audit.

  Attributes:
    found: by case, and of the negative control.
    positive: of the positive control.
    persons: number of persons.
    shadows: number of models.
    failed: controls that failed.
  """

  found: dict[str, Detection]
  positive: Detection
  persons: int
  shadows: int
  failed: tuple[str, ...]


def audit(
  config: Any,
  federation: Federation,
  folder: Path,
  shadows: int,
  seed: int = 0,
  tell: Tell = print,
) -> Audited:
  """Trains shadow models of a run and attacks each with the others.

  A stopped audit goes on where it ended. The models are deleted at the end.

  Args:
    config: of the run.
    federation: its clients.
    folder: of the models.
    shadows: their number, four or more.
    seed: of the halves.
    tell: called with a line after each model.

  Raises:
    ConfigError: for a run with several models, or clients that share persons.
    DataError: if too few persons have enough images.
  """
  persons = shadow_persons.of_clients(
    federation.clients, config.data.client_split
  )
  rng = np.random.default_rng(seed)
  included: list[np.ndarray] = []
  scores: dict[str, list[np.ndarray]] = {c: [] for c in shadow_persons.CASES}
  for number in range(shadows):
    halves = [shadow_persons.half(one.number, rng) for one in persons]
    found = _shadow(config, federation, persons, halves, folder, seed + number)
    included.append(np.concatenate(halves))
    for case, values in found.items():
      scores[case].append(values)
    tell(f'model {number + 1} of {shadows}')
  judged = _judged(
    {case: np.asarray(rows) for case, rows in scores.items()},
    np.asarray(included),
    np.asarray([rng.permutation(row) for row in included]),
    member_control.attack(persons, shadows, seed),
    seed,
  )
  shutil.rmtree(folder)
  return judged


def _shadow(
  config: Any,
  federation: Federation,
  persons: tuple[Persons, ...],
  halves: list[np.ndarray],
  folder: Path,
  seed: int,
) -> dict[str, np.ndarray]:
  """Trains a model on halves of the persons and returns all scores in it."""
  config = config.copy_and_resolve_references()
  config.seed, config.track = seed, ()
  members = federation._replace(
    clients=tuple(
      one.members(half) for one, half in zip(persons, halves, strict=True)
    ),
    targets=(),
  )
  place = folder / str(seed)
  loop.run_rounds(lambda given: build.assemble(given, members), config, place)
  run = loaded_run.load(config, place, federation=members)
  if run.name != 'global':
    raise errors.ConfigError(
      f'{config.name} has no single model of the server',
      '--attack',
      'give a run with one global model',
    )
  found = [one.scores(run.ranked) for one in persons]
  return {
    case: np.concatenate([scores[case] for scores in found])
    for case in shadow_persons.CASES
  }


def _judged(
  scores: dict[str, np.ndarray],
  included: np.ndarray,
  others: np.ndarray,
  positive: Detection,
  seed: int,
) -> Audited:
  """Returns the results with the verdict on both controls."""
  found: dict[str, Detection] = {}
  for case, values in scores.items():
    ratios = membership.log_ratios(values, included)
    found[case] = membership.measure(ratios, included, seed)
  values = scores[shadow_persons.CASES[0]]
  ratios = membership.log_ratios(values, others)
  found[NEGATIVE] = membership.measure(ratios, others, seed)
  failed: list[str] = []
  if positive.auc < SUCCESS:
    failed.append(
      f'persons learnt by heart have an AUC of {positive.auc:.3f}, below '
      f'{SUCCESS}'
    )
  real = ~np.isnan(ratios)
  if not detection.at_chance(ratios[others & real], ratios[~others & real]):
    failed.append(
      f'other halves are found with an AUC of {found[NEGATIVE].auc:.3f}'
    )
  return Audited(
    found, positive, included.shape[1], len(included), tuple(failed)
  )
