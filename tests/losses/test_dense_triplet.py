import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.losses import dense_triplet


def test_worked_numbers():
  """Two images of two positions, margin 0.3.

  Hinges: [2 - 1 + 0.3, 0] and [0.3, 1 - 0.5 + 0.3]; weighed by the co-masks
  [1, 1] and [0, 0.5]: 1.3, 0, 0, 0.4. Mean 0.425.
  """
  loss = dense_triplet.dense_triplet(
    jnp.array([[1.0, 1], [0, 0.5]]),
    jnp.array([[2.0, 1], [0, 1]]),
    jnp.array([[1.0, 4], [0, 0.5]]),
    jnp.ones(2, bool),
  )
  np.testing.assert_allclose(loss, 0.425, rtol=1e-6)


def arrays(seed=0):
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.uniform(size=(4, 6)), jnp.float32) for _ in range(3)]


@pytest.mark.gives_nan
def test_images_that_do_not_count_change_nothing():
  comask, positive, negative = arrays()
  valid = jnp.array([True, False, True, False])
  found = dense_triplet.dense_triplet(
    comask, positive.at[1].set(jnp.nan), negative, valid
  )
  kept = jnp.array([0, 2])
  alone = dense_triplet.dense_triplet(
    comask[kept], positive[kept], negative[kept], jnp.ones(2, bool)
  )
  np.testing.assert_allclose(found, alone, rtol=1e-6)


def test_no_image_counts():
  comask, positive, negative = arrays()
  loss, grad = jax.value_and_grad(
    lambda p: dense_triplet.dense_triplet(
      comask, p, negative, jnp.zeros(4, bool)
    )
  )(positive)
  assert loss == 0
  np.testing.assert_array_equal(grad, np.zeros_like(positive))


def test_images_are_not_mixed():
  """An image's co-mask weighs its own hinges: the gradient shows which."""
  _, positive, negative = arrays()
  comask = jnp.zeros((4, 6)).at[2, 3].set(1.0)
  grad = jax.grad(
    lambda p: dense_triplet.dense_triplet(
      comask, p, negative, jnp.ones(4, bool), 5.0
    )
  )(positive)
  expected = np.zeros((4, 6))
  expected[2, 3] = 1 / 24
  np.testing.assert_allclose(grad, expected, rtol=1e-6)
