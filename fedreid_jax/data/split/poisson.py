"""Batches of independently sampled units, for guarantees of privacy.

A unit is an identity or a single image. Every unit of a client is in a step
with the same probability, independently of all others and of other steps
(Poisson sampling). A step has a limited number of places; if more units are
drawn, a random subset of them takes part (truncated Poisson sampling,
arXiv:2508.15089). A step may be empty.
"""

import numpy as np

from fedreid_jax.core.types import ClientData, Plan

PLACES = 2  # places of a step over the expected number of its units


def places(expected: int) -> int:
  """Returns the number of places of a step, from its expected number."""
  return PLACES * expected


def rate(expected: int, population: int) -> float:
  """Returns the probability of a unit, 1 with fewer units than expected."""
  return min(expected / population, 1.0)


def images(
  rng: np.random.Generator, client: ClientData, steps: int, batch: int
) -> Plan:
  """Draws every image independently, B on average.

  Args:
    rng: generator of this client and round.
    client: its number of images.
    steps: steps to draw.
    batch: B.
  """
  pools = np.arange(client.num_images)[:, None]
  return _plan(rng, list(pools), steps, batch, 1)


def identities(
  rng: np.random.Generator,
  client: ClientData,
  steps: int,
  batch: int,
  expected: int,
) -> Plan:
  """Draws every identity independently, P on average, and K images of each.

  The K = B / P images of an identity differ if it has enough of them.

  Args:
    rng: generator of this client and round.
    client: labels of its images.
    steps: steps to draw.
    batch: B, a multiple of P.
    expected: P.
  """
  pools = [np.flatnonzero(client.labels == j) for j in np.unique(client.labels)]
  return _plan(rng, pools, steps, expected, batch // expected)


def _plan(
  rng: np.random.Generator,
  pools: list[np.ndarray],
  steps: int,
  expected: int,
  size: int,
) -> Plan:
  """Returns `size` images of each drawn unit, the units first in a step.

  Args:
    rng: generator of this client and round.
    pools: rows of the images of each unit.
    steps: steps to draw.
    expected: units of a step on average.
    size: images of a unit in a step.
  """
  most = places(expected)
  rows = np.full((steps, most, size), -1, np.int32)
  for step in range(steps):
    drawn = rng.random(len(pools)) < rate(expected, len(pools))
    # The order is random, so that the units without a place are as well.
    for place, unit in enumerate(rng.permutation(np.flatnonzero(drawn))[:most]):
      pool = pools[unit]
      rows[step, place] = rng.choice(pool, size, replace=len(pool) < size)
  rows = rows.reshape(steps, most * size)
  return Plan(np.maximum(rows, 0), rows >= 0)
