"""Groups of the uploads of a round."""

import handmade
import jax.numpy as jnp
import numpy as np
import toy

from fedreid_jax.method.component import Component
from fedreid_jax.method.sums import Gather
from fedreid_jax.round.server import server_round


def test_the_first_of_a_group_is_the_member_drawn_earliest():
  members = jnp.array([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], bool)
  # The client drawn before all others is in the second group.
  found = server_round._first(jnp.array([3, 1, 0, 2]), members)
  np.testing.assert_array_equal(
    found, [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
  )


def test_an_upload_that_is_not_finite_is_no_member_of_its_group():
  """Three of four clients move to the fourth's group, one of them with nan."""
  groups = jnp.array([3, 3, 3, 3])
  moves = Component(
    'moves',
    shared='.*',
    clustering=lambda old, ctx: groups,
    aggregation=Gather(),
  )
  server = handmade.variables(0.5)
  shared = {
    n: np.stack([x + 1, x + np.nan, x + 3, x + 5]) for n, x in server.items()
  }
  sent = handmade.uploads(shared, sizes=[1, 9, 2, 1])
  found, log = handmade.serve((moves,), server, sent)
  assert log['valid'].tolist() == [True, False, True, True]
  mean = {n: x[3] for n, x in found.shared.items()}
  expected = {n: x + (1 + 2 * 3 + 5) / 4 for n, x in server.items()}
  toy.assert_close_trees(mean, expected, 1e-6)
  np.testing.assert_allclose(log['weights'], [0.25, 0, 0.5, 0.25])
