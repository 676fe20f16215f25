"""Audit of the guarantee of a run of DP-FedAvg by canaries.

Every client of the run is a canary that takes part with probability 1/2
(`canary_rounds`). The positive control has no noise and all clients in every
round. The negative control has permuted scores.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg
from fedreid_jax.core import guarantee
from fedreid_jax.core.component import Participants
from fedreid_jax.data.federation import Federation
from fedreid_jax.privacy import canary_bound, canary_rounds
from fedreid_jax.privacy.canary_bound import Bound
from fedreid_jax.training import build, engine

FEWEST = 50  # canaries


class Audited(NamedTuple):
  """Results of the audit.

  Attributes:
    claimed: epsilon of the run.
    delta: of the guarantee.
    bound: lower bound of epsilon.
    positive: bound without noise.
    largest: bound if all guesses are right.
    negative: median bound of permuted scores.
    failed: controls that failed.
    refuted: how the guarantee is refuted, '' if it is not.
  """

  claimed: float
  delta: float
  bound: Bound
  positive: Bound
  largest: float
  negative: float
  failed: tuple[str, ...]
  refuted: str


def of_run(config: Any, federation: Federation, seed: int = 0) -> Audited:
  """Audits the guarantee of a run.

  Args:
    config: of the run.
    federation: its clients.
    seed: of canaries, cohorts and noise.

  Raises:
    ConfigError: for a run without DP-FedAvg, or with too few clients.
  """
  if dp_fedavg.NAME not in config.components:
    raise errors.ConfigError(
      f'{config.name} has no guarantee',
      '--attack',
      'give a run with the component dp_fedavg',
    )
  people = engine.participants_of(config, federation)
  components = engine.bound(build.load_components(config), people)
  claim = guarantee.Guarantee(components, people)
  options = dp_fedavg.Options(**build.arguments(config, dp_fedavg.NAME))
  return audit(options, people, claim.epsilon(config.rounds), seed)


def audit(
  options: dp_fedavg.Options,
  participants: Participants,
  claimed: float,
  seed: int = 0,
) -> Audited:
  """Bounds epsilon of the clients of a run from below.

  Args:
    options: of the component.
    participants: of the run.
    claimed: epsilon of the run.
    seed: of canaries, cohorts and noise.

  Raises:
    ConfigError: with fewer than 50 clients.
  """
  number, delta = len(participants.clients), options.delta
  if number < FEWEST:
    raise errors.ConfigError(
      f'{number} clients are fewer than {FEWEST} canaries',
      'dp_fedavg',
      'audit a run with more clients',
    )
  guesses = 2 * (number // 4)
  included = np.random.default_rng(seed).random(number) < 0.5
  found = canary_rounds.scores(options, participants, included, seed)
  bound = canary_bound.guess(found, included, guesses, delta)
  # The noise that epsilon would choose is replaced, too.
  silent = dataclasses.replace(options, noise=0.0, epsilon=0.0)
  everyone = participants._replace(
    cohort=number, fraction=1.0, poisson=False, rounds=1
  )
  loud = canary_rounds.scores(silent, everyone, included, seed)
  positive = canary_bound.guess(loud, included, guesses, delta)
  largest = canary_bound.lower_bound(delta, number, guesses, guesses)
  negative = canary_bound.of_permuted(found, included, guesses, delta, seed)
  failed: list[str] = []
  if positive.right < positive.guesses:
    failed.append(
      f'without noise only {positive.right} of {guesses} guesses are right'
    )
  if negative > 0:
    failed.append(f'permuted scores have the bound {negative:.3f}')
  refuted = ''
  if bound.epsilon > claimed:
    refuted = (
      f'epsilon is at least {bound.epsilon:.3f}, the run claims {claimed:.3f}'
    )
  return Audited(
    claimed,
    delta,
    bound,
    positive,
    largest,
    negative,
    tuple(failed),
    refuted,
  )
