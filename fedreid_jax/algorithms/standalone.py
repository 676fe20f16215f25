"""Standalone training: clients share no parameters and train independently.

This is the reference with which FedReIDBench compares (ACM MM 2020, section 4;
journal version, table 3): model k is trained on the images of client k only,

  (w_k, v_k) <- (w_k, v_k) - eta grad L_k((w_k, v_k)),

in the same loop as all methods. One run trains all clients, and each is
evaluated as `client:NAME`. Nothing is communicated.

Deviations from the paper: none. Deviations from the released code: it trains
one client per run, which does not change the results.
"""

from fedreid_jax.method.component import Component

# These have no effect if no parameters are shared.
WITHOUT_EFFECT = (
  'server',
  'transport',
  'clustering',
  'aggregation',
  'anchored',
  'max_staleness',
)


def make() -> Component:
  """Builds the component."""
  return Component(
    'standalone',
    # Matches no name.
    shared=r'(?!)',
    properties=('independent',),
    conflicts=WITHOUT_EFFECT,
  )
