"""Audit of the guarantee of a run of DP-FedAvg or DP-SGD by canaries.

Every client of a run of DP-FedAvg (`canary_rounds`), or every identity of one
client of a run of DP-SGD (`canary_steps`), is a canary that takes part with
probability 1/2. The positive control has no noise and all canaries in every
sum. The negative control permutes the scores.
"""

from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.algorithms import dp_fedavg, dpsgd
from fedreid_jax.apps.audit.canary import (
  canary_bound,
  canary_rounds,
  canary_steps,
)
from fedreid_jax.apps.audit.canary.canaries import Canaries
from fedreid_jax.apps.audit.canary.canary_bound import Bound
from fedreid_jax.data.federation import Federation
from fedreid_jax.method import guarantee, rounding
from fedreid_jax.method.component import Participants
from fedreid_jax.training import build, engine


class Audited(NamedTuple):
  """Results of the audit.

  Attributes:
    claimed: epsilon of the run.
    delta: of the guarantee.
    bound: lower bound of epsilon.
    positive: lower bound without noise.
    largest: lower bound if all guesses are right.
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
    seed: of canaries, cohorts or batches, and noise.

  Raises:
    ConfigError: for a run without a guarantee, or with too few clients.
  """
  people = engine.participants_of(config, federation)
  columns = max(client.num_identities for client in federation.clients)
  model = build.network(config, columns, federation.image_shape)
  unbound = build.load_components(config)
  # The noise that an epsilon chooses depends on all that a client sends.
  people = engine.completed(unbound, people, model)
  components = engine.bound(unbound, people, model)
  claim = guarantee.Guarantee(components, people)
  if not claim.claimed:
    raise errors.ConfigError(
      f'{config.name} has no guarantee',
      '--attack',
      'give a run with the component dp_fedavg or dpsgd',
    )
  claimed = claim.epsilon(config.rounds)
  return audit(_canaries(config, people, claimed), claimed, seed)


def _canaries(config: Any, people: Participants, claimed: float) -> Canaries:
  """Returns the canaries of the component that claims the guarantee."""
  if dpsgd.NAME in config.components:
    options = dpsgd.Options(**build.arguments(config, dpsgd.NAME))
    return canary_steps.of(options, people, claimed)
  if dp_fedavg.NAME in config.components:
    options = dp_fedavg.Options(**build.arguments(config, dp_fedavg.NAME))
    return canary_rounds.of(options, people)
  raise errors.ConfigError(
    f'there are no canaries for the guarantee of {config.name}',
    '--attack',
    'give a run with the component dp_fedavg or dpsgd',
  )


def audit(canaries: Canaries, claimed: float, seed: int = 0) -> Audited:
  """Bounds the epsilon of a mechanism from below.

  Args:
    canaries: of the mechanism.
    claimed: its epsilon.
    seed: of canaries, cohorts or batches, and noise.
  """
  number, guesses, delta = canaries.number, canaries.guesses, canaries.delta
  included = np.random.default_rng(seed).random(number) < 0.5
  found = canaries.scores(included, seed)
  bound = canary_bound.guess(found, included, guesses, delta)
  loud = canaries.silent(included, seed)
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
  # The bound is rounded down and the claim up, so that neither is overstated.
  if bound.epsilon > claimed:
    refuted = (
      f'epsilon is at least {rounding.down(bound.epsilon)}, the run claims '
      f'{rounding.up(claimed)}'
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
