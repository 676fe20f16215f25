import handmade
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax.algorithms import fedatt, fedavg
from fedreid_jax.core import trees

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN
FEDAVG = fedavg.make()


def serve(kernels, server=0.0, sizes=None, means=None, **arguments):
  """The server's leaves after clients sent kernels `[K]` of `[3, 2]`."""
  shared = {
    KERNEL: jnp.asarray(kernels, jnp.float32),
    HEAD: jnp.zeros((len(kernels), 2, 3)),
    MEAN: jnp.asarray(means or [[0, 0]] * len(kernels), jnp.float32),
  }
  state, log = handmade.serve(
    (FEDAVG, fedatt.make(fedatt.Options(**arguments))),
    handmade.variables(server),
    handmade.uploads(shared, sizes),
  )
  return {n: x[0] for n, x in state.shared.items()}, log


@pytest.mark.parametrize('server', [0.0, 2.0])
def test_worked_numbers(server):
  """Distances 5 and 4: attention sigmoid(1) and sigmoid(-1), sizes ignored."""
  near, far = np.zeros((3, 2)), np.zeros((3, 2))
  far[1, 0], far[2, 1] = 3, 4
  near[0, 0] = 4
  out, log = serve(
    [server + near, server + far], server, [90, 1], [[2, 0], [4, 8]]
  )
  alpha = 1 / (1 + np.exp(-1))
  expected = server + 1.2 * (alpha * far + (1 - alpha) * near)
  np.testing.assert_allclose(out[KERNEL], expected, rtol=1e-6)
  np.testing.assert_allclose(out[MEAN], [3, 4])
  # entropies of the kernel, of two equal classifiers and of the mean
  h = -alpha * np.log(alpha) - (1 - alpha) * np.log(1 - alpha)
  np.testing.assert_allclose(log['entropy'], (h + 2 * np.log(2)) / 3, rtol=1e-5)


def test_the_farthest_client_has_all_the_attention():
  kernels = [np.full((3, 2), x) for x in (1.0, 50.0, -2.0)]
  out, _ = serve(kernels, epsilon=1.0)
  np.testing.assert_allclose(out[KERNEL], 50.0, rtol=1e-6)


def test_a_single_client_with_a_full_step_is_copied():
  kernel = np.arange(6).reshape(1, 3, 2)
  out, _ = serve(kernel, server=9.0, epsilon=1.0)
  np.testing.assert_array_equal(out[KERNEL], kernel[0])


def test_equal_clients_come_back():
  components = FEDAVG, fedatt.make(fedatt.Options(epsilon=1.0))
  sent, got, _ = handmade.equal_clients(components)
  toy.assert_close_trees(got, sent, 1e-6)


def test_a_longer_step_goes_beyond_equal_clients():
  out, _ = serve([np.full((3, 2), 2.0)] * 3, server=1.0)
  np.testing.assert_allclose(out[KERNEL], 1 + 1.2 * 1.0, rtol=1e-6)


def test_weights_of_whoever_arrived():
  """Attention sums to the step in every leaf, running means go plainly."""
  server = handmade.variables(1.0, 2.0, 3.0)
  rng = np.random.default_rng(0)
  sent = handmade.uploads(
    {n: rng.standard_normal((4, *x.shape)) for n, x in server.items()},
    sizes=[1, 2, 3, 4],
  )
  subsets, rows = handmade.rows_of_subsets(fedatt.make(), sent, server)
  params, buffers = trees.trainable(rows)
  for weights in params.values():
    np.testing.assert_allclose(weights.sum(axis=1), 1.2, rtol=1e-5)
    assert not weights[~subsets].any() and (weights[subsets] > 0).all()
  plain = subsets / subsets.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(buffers[MEAN], plain, rtol=1e-6)


def test_noise_is_off_by_default_and_never_on_running_means():
  kernels, means = [np.ones((3, 2))] * 2, [[1, 2], [3, 4]]
  assert fedatt.make().server is None
  plain, _ = serve(kernels, means=means)
  noisy, _ = serve(kernels, means=means, noise_scale=0.1)
  again, _ = serve(kernels, means=means, noise_scale=0.1)
  toy.assert_equal_trees(noisy, again)
  gap = np.abs(noisy[KERNEL] - plain[KERNEL])
  assert (gap > 0).all() and gap.max() < 0.5
  np.testing.assert_array_equal(noisy[MEAN], plain[MEAN])
