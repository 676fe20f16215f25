"""Steps that sample each unit of a client independently.

A unit is an identity or an image of a client. Each of n units is in a step with
probability q = P / n. A step has a limited number of places; a random subset of
more units takes part (truncated Poisson sampling). Samplers of batches
(`data.sampling`) and guarantees of privacy both follow these numbers.
"""

from typing import Literal

import numpy as np

from fedreid_jax.method.accounting import Mechanism
from fedreid_jax.method.component import Participants

Unit = Literal['identity', 'image']

PLACES = 2  # places of a step over the expected number of its units


def places(expected: int) -> int:
  """Returns the places of a step with an expected number of units."""
  return PLACES * expected


def rate(expected: int, population: int) -> float:
  """Returns the probability that a unit is in a step, 1 for too few units."""
  return min(expected / population, 1.0)


def expected(unit: str, participants: Participants) -> int:
  """Returns P, the number of units of a step on average."""
  by_identity = unit == 'identity'
  return participants.identities if by_identity else participants.batch


def populations(unit: str, participants: Participants) -> list[int]:
  """Returns the number of units of each client."""
  return [
    len(np.unique(client.labels)) if unit == 'identity' else client.num_images
    for client in participants.clients
  ]


def mechanisms(
  noise: float,
  population: int,
  units: int,
  steps: int,
  limit: int | None = None,
) -> list[Mechanism]:
  """Returns the noisy sums of noise z to which a unit contributes.

  Args:
    units: number of units of a step on average, `P`.
    limit: largest number of units in a step, 0 for no limit; by default it is
      the limit of the sampler.
  """
  if limit is None:
    limit = places(units)
  if not limit or population <= limit:
    return [Mechanism(noise, units / population, steps)]
  return [Mechanism(noise, units / population, steps, population, limit)]


def hidden_by_few(fewest: int, drawn: int, unit: str) -> list[str]:
  """Returns warnings about clients with few units."""
  found: list[str] = []
  if fewest == 1:
    found.append(
      f'a client has a single {unit}, so that its sums are about this one alone'
    )
  if fewest == drawn:
    found.append(
      f'every {unit} of a client is in every step (sampling rate 1), so that '
      'sampling does not lower epsilon'
    )
  return found
