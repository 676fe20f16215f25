"""Batches of independently sampled units, for guarantees of privacy.

A unit is an identity or a single image. Every unit of a client is in a step
with the same probability, independently of all other units and of other steps
(Poisson sampling). A step has a limited number of places; if more units are
drawn, a random subset of them takes part (truncated Poisson sampling,
arXiv:2508.15089). A step may be empty.
"""

import numpy as np

from fedreid_jax.core.types import ClientData, Plan

PLACES = 2  # places of a step over the expected number of its units


def places(expected: int) -> int:
  """Returns the number of places of a step with an expected number of units."""
  return PLACES * expected


def rate(expected: int, population: int) -> float:
  """Returns the probability that a unit is in a step.

  It is 1 for a client with fewer units than the expected number of a step.
  """
  return min(expected / population, 1.0)


def images(
  rng: np.random.Generator, client: ClientData, steps: int, batch: int
) -> Plan:
  """Draws every image independently, B on average.

  Args:
    rng: generator of this client and round.
    client: the client, of which only the number of images is used.
    steps: number of steps to draw.
    batch: B, the expected number of images of a step.
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
    steps: number of steps to draw.
    batch: B, a multiple of P.
    expected: P, the expected number of identities of a step.
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
  """Draws units for each step and `size` images of each unit.

  The rows of drawn units come first in a step; the others are padded.

  Args:
    rng: generator of this client and round.
    pools: rows of the images of each unit.
    steps: number of steps to draw.
    expected: expected number of units of a step.
    size: number of images of a unit in a step.
  """
  most = places(expected)
  rows = np.full((steps, most, size), -1, np.int32)
  for step in range(steps):
    drawn = rng.random(len(pools)) < rate(expected, len(pools))
    # In a random order, units without a place are a random subset, too.
    for place, unit in enumerate(rng.permutation(np.flatnonzero(drawn))[:most]):
      pool = pools[unit]
      rows[step, place] = rng.choice(pool, size, replace=len(pool) < size)
  rows = rows.reshape(steps, most * size)
  return Plan(np.maximum(rows, 0), rows >= 0)
