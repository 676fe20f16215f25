import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms import fedpav
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


TREE = {
  'params': {
    'backbone': {'conv': {'kernel': np.zeros((3, 3, 1, 2), np.float32)}},
    'classifier': {'kernel': np.zeros((2, 5), np.float32)},
  },
  'batch_stats': {'neck': {'mean': np.zeros(2, np.float32)}},
}


def test_flatten_and_back():
  flat = trees.flatten(TREE)
  assert set(flat) == {
    'params/backbone/conv/kernel',
    'params/classifier/kernel',
    'batch_stats/neck/mean',
  }
  assert trees.unflatten(flat) == TREE


def test_fedpav_keeps_the_classifier_only():
  shared, personal = trees.split(trees.flatten(TREE), fedpav.make().shared)
  assert list(personal) == ['params/classifier/kernel']
  assert len(shared) == 2


def test_buffers_are_not_trained():
  params, buffers = trees.trainable(trees.flatten(TREE))
  assert list(buffers) == ['batch_stats/neck/mean']
  assert len(params) == 2


def test_a_digest_depends_on_names_types_shapes_and_bits_not_on_order():
  one, two = np.arange(4, dtype=np.float32), np.zeros((2, 2), np.int32)
  same = trees.digest({'a': one, 'b': two})
  assert trees.digest({'b': two, 'a': one}) == same
  changed = one.copy()
  changed[3] = np.nextafter(changed[3], np.float32(9))
  for other in (
    {'a': changed, 'b': two},
    {'a': one, 'c': two},
    {'a': one.reshape(2, 2), 'b': two},
    {'a': one.view(np.int32), 'b': two},
    {'a': one},
  ):
    assert trees.digest(other) != same


def test_all_numbers_of_a_tree_are_finite_or_not():
  tree = {'a': jnp.ones(3), 'b': (jnp.arange(2), jnp.zeros((2, 0)))}
  assert trees.all_finite(tree) and trees.all_finite({})
  for value in (np.nan, np.inf, -np.inf):
    wrong = tree | {'c': jnp.array([0.0, value])}
    assert not trees.all_finite(wrong)
    stacked = jax.vmap(trees.all_finite)(jnp.array([[1.0, 2.0], [0.0, value]]))
    assert stacked.tolist() == [True, False]


def test_a_program_that_needs_all_flags_grows_with_their_number():
  """A chain of `and` is copied into every user: 4 times for twice the flags."""

  def kept(values):
    ok = trees.all_finite(values)
    return [jnp.where(ok, value * 2.0, 0.0) for value in values]

  def size(n):
    values = [jnp.ones(2 + i % 3) for i in range(n)]
    text = jax.jit(kept).lower(values).compile().as_text()
    return text.count('parameter(')

  assert size(40) < 2.5 * size(20)
