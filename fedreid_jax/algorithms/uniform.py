"""Uniform weights: every client of the cohort has the same weight.

Wu & Gong, Decentralised learning from independent multi-domain labels for
person re-identification, AAAI 2021, and SCAFFOLD average over the cohort S

  w = (1 / |S|) sum_{k in S} w_k.

Deviations from the paper: none. Deviations from released code: none.
"""

from fedreid_jax.method.component import Component
from fedreid_jax.method.sums import UNIFORM


def make() -> Component:
  """Builds the component."""
  return Component(
    'uniform',
    aggregation=UNIFORM,
    properties=('equal_weights',),
  )
