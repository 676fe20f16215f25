"""Uniform weights: every client of the cohort has the same weight.

Wu & Gong, Decentralised learning from independent multi-domain labels for
person re-identification, AAAI 2021, and SCAFFOLD average over the cohort S

  w = (1 / |S|) sum_{k in S} w_k.

Deviations from the paper: none. Deviations from released code: none.
"""

from fedreid_jax.core import aggregation
from fedreid_jax.core.component import Aggregation, Component
from fedreid_jax.core.contexts import AggregationCtx
from fedreid_jax.core.types import Array


def make() -> Component:
  """Builds the component."""

  def weights(messages: tuple[()], ctx: AggregationCtx) -> Array:
    del messages
    return aggregation.uniform(ctx.members)

  return Component('uniform', aggregation=Aggregation(weights))
