import jax.numpy as jnp
import numpy as np

from fedreid_jax.round.server import server_round


def test_the_first_of_a_group_is_the_member_drawn_earliest():
  members = jnp.array([[1, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], bool)
  # The client drawn before all others is in the second group.
  found = server_round._first(jnp.array([3, 1, 0, 2]), members)
  np.testing.assert_array_equal(
    found, [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
  )
