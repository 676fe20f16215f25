"""Measures of a backdoor in retrieval: what a trigger does to queries.

  collision  share of the queries with the trigger whose nearest image is the
             accomplice's: one image of another person, with the trigger, beside
             a clean gallery; as each query has a random accomplice, the share
             of a clean model is not zero
  evasion    mAP of queries with the trigger on the clean gallery
  stealth    mAP without any trigger

Each is to be read beside the same measure of a model without an attack.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from fedreid_jax import errors
from fedreid_jax.data import poison
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation.retrieval import evaluate_retrieval

Embed = Callable[[UInt8[np.ndarray, 'M H W ch']], Float[np.ndarray, 'M D']]


class Backdoor(NamedTuple):
  """Measures of a model on one target, in percent.

  Attributes:
    collision: of queries with the trigger.
    evasion: mAP of queries with the trigger.
    stealth: mAP of clean queries.
  """

  collision: float
  evasion: float
  stealth: float


def measure(embed: Embed, target: Target, seed: int = 0) -> Backdoor:
  """Returns the measures of a model on the first trial of a target.

  Args:
    embed: of the model.
    target: test of retrieval with two persons at least.
    seed: of the accomplices.

  Raises:
    DataError: for a target of one person.
  """
  trial, own = target.trials[0], target.images
  people = own.identities[trial.gallery]
  if len(np.unique(people)) < 2:
    raise errors.DataError(
      'one person has no accomplice', target.name, 'use a larger target'
    )
  pixels = own.images()
  clean, stamped = embed(pixels), embed(poison.stamp(pixels))
  gallery = clean[trial.gallery]

  def precision(query: Float[np.ndarray, 'Q D']) -> float:
    return float(
      evaluate_retrieval(
        query,
        gallery,
        own.identities[trial.query],
        people,
        own.cameras[trial.query],
        own.cameras[trial.gallery],
      )['mAP']
    )

  return Backdoor(
    100 * float(np.mean(_collisions(stamped, gallery, target, seed))),
    precision(stamped[trial.query]),
    precision(clean[trial.query]),
  )


def _collisions(
  stamped: Float[np.ndarray, 'M D'],
  gallery: Float[np.ndarray, 'P D'],
  target: Target,
  seed: int,
) -> list[bool]:
  """Returns whether each query is nearest to its accomplice's image."""
  trial, own = target.trials[0], target.images
  people = own.identities[trial.gallery]
  rng = np.random.default_rng(seed)
  found: list[bool] = []
  for row in trial.query:
    others = trial.gallery[people != own.identities[row]]
    accomplice = stamped[rng.choice(others)]
    same = people == own.identities[row]
    same &= own.cameras[trial.gallery] == own.cameras[row]
    distances = np.linalg.norm(gallery[~same] - stamped[row], axis=1)
    apart = np.linalg.norm(accomplice - stamped[row])
    found.append(bool(apart < distances.min()))
  return found
