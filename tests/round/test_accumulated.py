"""How often a gradient counts in the update of a round, FedNova's |a|_1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax.method import optimizers


def count(num_steps, momentum, nesterov, decay=0.0):
  return optimizers.effective_steps(
    num_steps, decay, momentum=momentum, nesterov=nesterov
  )


@pytest.mark.parametrize(
  'momentum, nesterov, expected',
  [(0.9, False, 281.825), (0.9, True, 290.642), (0.0, False, 37.0)],
  ids=['heavy-ball', 'nesterov', 'plain'],
)
def test_thirty_seven_steps(momentum, nesterov, expected):
  found = count(37, momentum, nesterov)
  np.testing.assert_allclose(found, expected, atol=5e-4)


@pytest.mark.parametrize('nesterov', [False, True])
@pytest.mark.parametrize('momentum', [0.0, 0.5, 0.9])
def test_closed_forms(momentum, nesterov):
  steps = np.arange(60)
  decayed = momentum * (1 - momentum**steps) / (1 - momentum)
  expected = (steps - decayed) / (1 - momentum)
  if nesterov:
    expected = steps + momentum * expected
  found = jax.vmap(lambda n: count(n, momentum, nesterov))(jnp.asarray(steps))
  np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize('decay', [0.0, 0.02, 0.3])
def test_proximal_term_without_momentum(decay):
  """The recursion of the released code, a <- (1 - lr mu) a + 1."""
  expected = 0.0
  for num_steps in range(1, 12):
    expected = (1 - decay) * expected + 1
    found = count(num_steps, 0.0, False, decay)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize('nesterov', [False, True])
def test_it_is_what_the_optimiser_does_near_an_anchor(nesterov):
  """SGD on a constant gradient plus mu (w - w^t), 9 steps from w^t = 0."""
  lr, mu, momentum = 0.1, 0.4, 0.8
  rule = optimizers.sgd(momentum, nesterov, 0.0)
  params = {'params/w': jnp.zeros(1)}
  state = rule.init(params)
  for _ in range(9):
    grads = {'params/w': 3.0 + mu * params['params/w']}
    params, state = rule.update(grads, state, params, lr)
  moved = -params['params/w'] / (lr * 3.0)
  found = rule.effective_steps(9, lr * mu)
  np.testing.assert_allclose(found, moved[0], rtol=1e-5)
