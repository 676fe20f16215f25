"""What becomes of uploads, in numbers small enough to work out by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.core import types
from fedreid_jax.method import aggregation


def uploads(values, **fields):
  values = jnp.asarray(values, jnp.float32)
  num = len(values)
  sent = types.Upload(
    jnp.arange(num),
    {'params/w': values},
    jnp.ones(num),
    jnp.ones(num, int),
    jnp.ones(num, bool),
    {},
  )
  return dataclasses.replace(sent, **fields)


def test_valid_is_real_and_finite_in_all_of_its_numbers():
  nan, inf = np.nan, np.inf
  sent = uploads(
    [[1, 2], [1, nan], [inf, 2], [1, 2], [1, 2], [1, 2]],
    index=jnp.array([0, 1, 2, -1, 4, 5]),
    finite=jnp.array([1, 1, 1, 1, 0, 1], bool),
    messages={'m': jnp.array([0, 0, 0, 0, 0, -inf])},
  )
  found = aggregation.valid_uploads(sent)
  assert found.tolist() == [True] + [False] * 5


def test_each_group_has_its_own_sum():
  members = jnp.array([[1, 1, 0, 0], [0, 0, 1, 1]], bool)
  rows = aggregation.normalise(jnp.array([1.0, 3.0, 4.0, np.nan]), members)
  np.testing.assert_allclose(rows[0], [0.25, 0.75, 0.0, 0.0])
  rows = aggregation.normalise(jnp.array([1.0, 3.0, 4.0, 4.0]), members)
  np.testing.assert_allclose(rows[1], [0.0, 0.0, 0.5, 0.5])


def test_only_rows_that_cannot_be_used_are_replaced():
  members = jnp.array([[1, 1], [1, 1], [1, 1], [0, 0]], bool)
  weights = jnp.array([[0.5, 0.5], [0.0, 0.0], [np.nan, 1.0], [0.0, 0.0]])
  sizes = jnp.array([[0.25, 0.75]] * 3 + [[0.0, 0.0]])
  rows, fell_back = aggregation.usable(weights, members, sizes)
  np.testing.assert_allclose(
    rows, [[0.5, 0.5], [0.25, 0.75], [0.25, 0.75], [0.0, 0.0]]
  )
  assert fell_back
  rows, fell_back = aggregation.usable(weights[:1], members[:1], sizes[:1])
  np.testing.assert_allclose(rows, [[0.5, 0.5]])
  assert not fell_back


def test_a_client_of_one_group_only_counts_there():
  weights = jnp.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.0]])
  values = {'w': jnp.array([[2.0], [4.0], [np.nan]])}
  server = {'w': jnp.array([[9.0], [8.0]])}
  out = aggregation.reduce(server, values, {'w': weights})
  # The second row leaves three quarters to the server's model.
  np.testing.assert_allclose(out['w'], [[3.0], [0.25 * 4 + 0.75 * 8]])


@pytest.mark.parametrize(
  'rule, expected',
  [('average', 2.5), ('first_client', 4.0), ('keep_server', 9.0)],
)
def test_running_statistics_have_weights_of_their_own(rule, expected):
  names = ('params/w', 'batch_stats/mean')
  server = {name: jnp.array([[9.0]]) for name in names}
  values = {name: jnp.array([[1.0], [4.0]]) for name in names}
  half = jnp.full((1, 2), 0.5)
  weights = aggregation.leaf_weights(
    half, half, server, jnp.array([[0.0, 1.0]]), rule
  )
  out = aggregation.reduce(server, values, weights)
  np.testing.assert_allclose(out['params/w'], [[2.5]])
  np.testing.assert_allclose(out['batch_stats/mean'], [[expected]])


def test_the_log_of_weights_is_their_sum_or_their_entropy():
  rows = jnp.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
  log = aggregation.summarise(rows)
  np.testing.assert_allclose(log['weights'], [0.5, 0.5, 1.0])
  log = aggregation.summarise({'a': rows[:1], 'b': rows[1:]})
  np.testing.assert_allclose(log['entropy'], np.log(2) / 2, rtol=1e-6)
