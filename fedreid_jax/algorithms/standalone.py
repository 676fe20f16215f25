"""Standalone training: nothing travels, every client learns alone.

The reference that FedReIDBench (ACM MM 2020, section 4; journal version, table
3) compares with: model k is trained on the images of client k only,

  (w_k, v_k) <- (w_k, v_k) - eta grad L_k((w_k, v_k)),

in the same loop as every method. All clients of a run train beside each other
and each is evaluated as `client:NAME`; communication is zero.

Deviations from the paper: none. Deviations from the released code: it trains
one client a run; the numbers do not depend on it.
"""

from fedreid_jax.core.component import Component, ComponentInfo

# They would have no effect where nothing is shared.
WITHOUT_EFFECT = (
  'server',
  'transport',
  'clustering',
  'aggregation',
  'fedprox',
  'moon',
)


def make() -> Component:
  """Builds the component."""
  return Component(
    'standalone',
    shared=r'(?!)',
    info=ComponentInfo(conflicts=WITHOUT_EFFECT),
  )
