import handmade
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import fednova, fedpav
from fedreid_jax.method import optimizers
from fedreid_jax.method.contexts import RoundEndCtx

KERNEL, MEAN = handmade.KERNEL, handmade.MEAN
FEDPAV = fedpav.make()


def two(**fields):
  """Two clients that moved from 10 to 8 and to 6, of one and three images."""
  shared = {KERNEL: [[[8.0]], [[6.0]]], MEAN: [[0.0], [4.0]]}
  shared = {
    KERNEL: jnp.broadcast_to(jnp.array(shared[KERNEL]), (2, 3, 2)),
    MEAN: jnp.broadcast_to(jnp.array(shared[MEAN]), (2, 2)),
  }
  return handmade.uploads(shared, sizes=[1, 3], steps=[2, 5], **fields)


@pytest.mark.parametrize(
  'mu, counts, expected',
  [
    # tau = (2 + 3 * 5) / 4 = 4.25, mean of D / a = (2 / 2 + 3 * 4 / 5) / 4
    (0.0, [2.0, 5.0], 10 - 4.25 * 0.85),
    # tau = (1.5 + 3 * 3) / 4 = 2.625, (2 / 1.5 + 3 * 4 / 3) / 4 = 4 / 3
    (0.0, [1.5, 3.0], 10 - 2.625 * 4 / 3),
    # with a proximal term tau counts steps
    (0.1, [1.5, 3.0], 10 - 4.25 * 4 / 3),
  ],
)
def test_worked_numbers(mu, counts, expected):
  server, log = handmade.serve(
    (FEDPAV, fednova.make(fednova.Options(mu=mu))),
    handmade.variables(10.0),
    two(fednova=counts),
  )
  np.testing.assert_allclose(server.shared[KERNEL][0], expected, rtol=1e-6)
  np.testing.assert_allclose(server.shared[MEAN][0], 3.0)
  assert not log['fell_back']


def test_the_same_counts_are_fedpav():
  nova, _ = handmade.serve(
    (FEDPAV, fednova.make()), handmade.variables(10.0), two(fednova=[7.3, 7.3])
  )
  plain, _ = handmade.serve((FEDPAV,), handmade.variables(10.0), two())
  toy.assert_close_trees(nova.shared, plain.shared, 1e-6)


def test_equal_clients_come_back():
  sent, got, _ = handmade.equal_clients(
    (FEDPAV, fednova.make()), fednova=[4.0] * 3
  )
  toy.assert_close_trees(got, sent, 1e-6)


def test_weights_of_whoever_arrived():
  server = handmade.variables()
  sizes, counts = np.array([2, 7, 1]), np.array([3.0, 40.0, 9.0])
  sent = handmade.same_uploads(server, 3, sizes=sizes, fednova=counts)
  subsets, rows = handmade.rows_of_subsets(fednova.make(), sent, server)
  assert MEAN not in rows
  for here, row in zip(subsets, rows[KERNEL], strict=True):
    share = here * sizes / (here * sizes).sum()
    expected = (share * counts).sum() * share / counts
    np.testing.assert_allclose(row, expected, rtol=1e-5)


def finish(optimizer, mu, num_steps=4, lr=0.5):
  work = handmade.task(num_steps=num_steps)
  ctx = handmade.context(RoundEndCtx, optimizer=optimizer, task=work, lr=lr)
  return fednova.make(fednova.Options(mu=mu)).client.round_end((), ctx)[1]


def test_a_client_sends_how_often_its_gradients_count():
  assert finish(optimizers.sgd(0.0, False, 0.0), 0.0) == 4
  # heavy ball of 0.5: 1 + 1.5 + 1.75 + 1.875
  np.testing.assert_allclose(
    finish(optimizers.sgd(0.5, False, 0.0), 0.0), 6.125
  )
  # a <- (1 - lr mu) a + 1: 1, 1.9, 2.71, 3.439
  np.testing.assert_allclose(
    finish(optimizers.sgd(0.0, False, 0.0), 0.2), 3.439
  )


def test_only_sgd_can_be_counted():
  adam = optimizers.sgd(0.0, False, 0.0)._replace(effective_steps=None)
  with pytest.raises(errors.ConfigError, match='optim.name'):
    finish(adam, 0.0)
