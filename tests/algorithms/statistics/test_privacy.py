import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax.algorithms.statistics import privacy

KEY = jax.random.key(5)
LEAVES = {
  'params/b': jnp.full((1, 100, 50), 3.0),
  'params/a': jnp.zeros(5000),
  'batch_stats/var': jnp.ones(20),
}


def added(key=KEY, **arguments):
  noisy = privacy.gaussian(key, LEAVES, 0.5, **arguments)
  assert noisy.keys() == LEAVES.keys()
  return {n: np.asarray(noisy[n] - x).ravel() for n, x in LEAVES.items()}


def test_a_key_gives_the_same_bits_and_another_others():
  toy.assert_equal_trees(added(), added())
  other = added(jax.random.key(6))
  assert (added()['params/a'] != other['params/a']).mean() > 0.99


def test_deviation_is_the_scale_and_leaves_are_independent():
  found = added()
  a, b = found['params/a'], found['params/b']
  for leaf in (a, b):
    assert abs(leaf.mean()) < 5 * 0.5 / np.sqrt(5000)
    np.testing.assert_allclose(leaf.std(), 0.5, rtol=0.05)
  assert abs(np.corrcoef(a, b)[0, 1]) < 0.06


def test_order_of_the_leaves_does_not_matter():
  backwards = dict(reversed(LEAVES.items()))
  toy.assert_equal_trees(
    privacy.gaussian(KEY, LEAVES, 0.5),
    privacy.gaussian(KEY, backwards, 0.5),
  )


@pytest.mark.parametrize('batch_stats', [False, True])
def test_running_statistics_only_if_asked(batch_stats):
  assert added(batch_stats=batch_stats)['batch_stats/var'].any() == batch_stats


def test_no_scale_is_no_noise():
  toy.assert_equal_trees(privacy.gaussian(KEY, LEAVES, 0.0), LEAVES)
