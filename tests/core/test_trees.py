import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import trees


def test_zeros_have_the_shapes_and_types_of_arrays_and_of_eval_shape():
  tree = {'a': jnp.ones((2, 3), jnp.int32), 'b': (jnp.ones(4),)}
  for like in (tree, jax.eval_shape(lambda: tree)):
    found = trees.zeros(like)
    assert found['a'].shape == (2, 3) and found['a'].dtype == jnp.int32
    np.testing.assert_array_equal(found['b'][0], np.zeros(4))


def test_rows_are_along_the_leading_axis_of_every_array():
  tree = {'a': np.arange(6).reshape(3, 2), 'b': np.arange(3)}
  found = trees.rows(tree, np.array([2, 0]))
  np.testing.assert_array_equal(found['a'], [[4, 5], [0, 1]])
  np.testing.assert_array_equal(found['b'], [2, 0])


def test_select_ignores_nan_in_the_other_tree():
  new, old = {'a': jnp.ones(2)}, {'a': jnp.full(2, jnp.nan)}
  np.testing.assert_array_equal(
    trees.select(jnp.bool_(True), new, old)['a'], [1, 1]
  )
  assert jnp.isnan(trees.select(jnp.bool_(False), new, old)['a']).all()
