"""Robust aggregation: rules that few wrong uploads cannot move far.

With D_k = w_k - w^t of the K uploads of a round, of which f may be wrong:

  median     the median of every coordinate
  trimmed    its mean without the f largest and the f smallest values
  krum       the D_i with the least s_i, the sum of the squared distances of
             D_i to the nearest K - f - 2 others
  multikrum  the mean of the m with the least s_i, by default m = K - f - 2
  rfa        the geometric median, argmin_v sum_k p_k |v - D_k|
  bound      sum_k p_k D_k min(1, M / |D_k|); M is the median of the norms
             unless `bound` is given. It bounds an upload and rejects none.

Yin et al., Byzantine-robust distributed learning: towards optimal statistical
rates, ICML 2018, algorithm 1 (median, trimmed); Blanchard et al., Machine
learning with adversaries: Byzantine tolerant gradient descent, NeurIPS 2017
(krum, multikrum); Pillutla et al., Robust aggregation for federated learning,
2019 (rfa); Sun et al., Can you really backdoor federated learning?, 2019
(bound). p_k are the shares of images; the first four rules weight clients
equally. Distances are over all shared values, running statistics included.

An upload that is not finite is left out. Then f is lowered to the largest
number that the remaining uploads allow, and m to K - f - 2 of them.

Deviations from the papers: the rules apply to models after local training and
not to gradients. `rfa` starts at the median of every coordinate instead of the
mean, from which one distant upload takes tens of iterations to lose its weight.
Deviations from released code: that of RFA does three iterations by default and
stops by the objective; this module stops when the median moves by less than
1e-6 of its norm.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.algorithms.statistics import robust_rules
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import aggregation
from fedreid_jax.method.component import (
  Component,
  ComponentInfo,
  Participants,
)
from fedreid_jax.method.contexts import AggregationCtx
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.method.sums import Gather

# Number of uploads in addition to 2 f that a rule needs; `bound` has no limit.
SPARE = {'median': 1, 'trimmed': 1, 'krum': 3, 'multikrum': 3, 'rfa': 1}
# Rules by coordinate: their results are no weighted means of the uploads.
COORDINATES = ('median', 'trimmed')


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of robust aggregation."""

  rule: Annotated[
    Literal['median', 'trimmed', 'krum', 'multikrum', 'rfa', 'bound'],
    'rule of the server; bound limits the norm of an update and rejects none',
  ] = 'median'
  f: Annotated[
    int, Range(0), 'number of wrong uploads in a round that the rule resists'
  ] = 1
  m: Annotated[
    int,
    Range(0),
    'multikrum: number of averaged uploads, at most K - f - 2; 0 for as many',
  ] = 0
  bound: Annotated[
    float, Range(0), 'bound: largest norm of an update, 0 for the median norm'
  ] = 0.0
  iterations: Annotated[int, Range(1), 'rfa: largest number of iterations'] = 50


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield (
    given.config.batch_stats_rule == 'first_client',
    'batch_stats_rule',
    f'{given.name!r} cannot trust the running statistics of one client',
    f"set it to 'average', which is the rule of {given.name}, or 'keep_server'",
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def check(participants: Participants) -> None:
    _check(options, participants)

  def weights(messages: tuple[()], ctx: AggregationCtx) -> Array:
    del messages
    return jnp.where(ctx.members, _weights(options, ctx)[None], 0.0)

  def combine(models: Flat, ctx: AggregationCtx) -> Flat:
    return _combine(options, models, ctx)

  by_coordinate = options.rule in COORDINATES
  return Component(
    'robust',
    aggregation=Gather(weights, combine if by_coordinate else None),
    info=ComponentInfo(conflicts=('clustering',), check=check),
  )


def _check(options: Options, participants: Participants) -> None:
  """Refuses a number of wrong uploads that the rule does not resist."""
  rule, f = options.rule, options.f
  needed = 2 * f + SPARE.get(rule, -2 * f)
  if participants.cohort < needed:
    raise errors.ConfigError(
      f'{rule} with f={f} needs {needed} uploads in a round, but there are '
      f'{participants.cohort}',
      'robust.f',
      'lower it, raise the fraction of clients, or use more clients',
    )
  most = participants.cohort - f - 2
  if rule == 'multikrum' and options.m > most:
    raise errors.ConfigError(
      f'a mean of {options.m} of {participants.cohort} uploads has wrong ones '
      f'if {f} are wrong',
      'robust.m',
      f'give at most {most}, or 0',
    )
  sizes = sorted(client.num_images for client in participants.clients)
  # With half of the weight, the geometric median is at the wrong uploads.
  if rule == 'rfa' and f and 2 * sum(sizes[-f:]) >= sum(sizes):
    raise errors.ConfigError(
      f'the {f} largest clients have half of all images, which is their weight '
      'in the geometric median',
      'robust.f',
      'lower it, or use another rule',
    )


def _weights(options: Options, ctx: AggregationCtx) -> Array:
  """Returns the weights of the uploads, `[K]`."""
  valid, rule = ctx.members[0], options.rule
  if rule in COORDINATES:
    return aggregation.uniform(ctx.members)[0]
  # All shared values together, so that an upload has one weight.
  changes = {n: x - ctx.start[n] for n, x in ctx.uploaded.items()}
  count = valid.sum()
  f = robust_rules.tolerated(count, options.f, SPARE.get(rule, 1))
  shares = aggregation.normalise(ctx.num_examples, ctx.members)[0]
  if rule == 'rfa':
    return robust_rules.geometric_median_weights(
      changes, valid, shares, options.iterations
    )
  if rule == 'bound':
    return robust_rules.bounded_weights(changes, valid, shares, options.bound)
  chosen = jnp.int32(1)
  if rule == 'multikrum':
    # With more, an upload that is far from all others would have a weight.
    most = jnp.maximum(count - f - 2, 1)
    chosen = jnp.minimum(options.m, most) if options.m else most
  return robust_rules.krum_weights(changes, valid, f, chosen)


def _combine(options: Options, models: Flat, ctx: AggregationCtx) -> Flat:
  """Returns the model by coordinate; without uploads it stays, `[1, ...]`."""
  valid = ctx.members[0]
  if options.rule == 'median':
    found = robust_rules.median(ctx.uploaded, valid)
  else:
    f = robust_rules.tolerated(valid.sum(), options.f, SPARE[options.rule])
    found = robust_rules.trimmed_mean(ctx.uploaded, valid, f)
  return {
    name: jnp.where(valid.any(), found[name].astype(old.dtype)[None], old)
    for name, old in models.items()
  }
