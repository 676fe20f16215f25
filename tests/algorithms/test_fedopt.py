import handmade
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.algorithms import fedopt, fedpav

KERNEL, MEAN = handmade.KERNEL, handmade.MEAN
FEDPAV = fedpav.make()
OPTIMIZERS = ('sgd', 'adam', 'yogi', 'adagrad')


def sent(seed):
  """Two clients of one and three images that went different ways."""
  rng = np.random.default_rng(seed)
  shapes = {KERNEL: (2, 3, 2), MEAN: (2, 2)}
  return handmade.uploads(
    {n: rng.standard_normal(shape) for n, shape in shapes.items()}, [1, 3]
  )


def mean(uploads, name):
  values = np.asarray(uploads.shared[name], 'f8')
  return np.average(values, axis=0, weights=[1, 3])


def serve(*rounds, **arguments):
  server, _ = handmade.serve(
    (FEDPAV, fedopt.make(fedopt.Options(**arguments))),
    handmade.variables(1.0),
    *rounds,
  )
  return server.shared[KERNEL][0], server.shared[MEAN][0]


def test_rate_one_without_momentum_is_fedpav():
  rounds = sent(0), sent(1)
  plain, _ = handmade.serve((FEDPAV,), handmade.variables(1.0), *rounds)
  found = serve(*rounds, name='sgd', lr=1.0, momentum=0.0)
  np.testing.assert_allclose(found[0], plain.shared[KERNEL][0], atol=1e-6)
  np.testing.assert_array_equal(found[1], plain.shared[MEAN][0])


def test_two_rounds_of_heavy_ball():
  """FedAvgM: m = 0.9 m + (w - w'), w -= 0.5 m."""
  weights, moment = np.ones((3, 2)), 0.0
  rounds = sent(0), sent(1)
  for uploads in rounds:
    moment = 0.9 * moment + weights - mean(uploads, KERNEL)
    weights = weights - 0.5 * moment
  kernel, running = serve(*rounds, name='sgd', lr=0.5, momentum=0.9)
  np.testing.assert_allclose(kernel, weights, rtol=1e-5)
  np.testing.assert_allclose(running, mean(rounds[1], MEAN), rtol=1e-6)


SECOND = {
  'adam': lambda v, d: 0.95 * v + 0.05 * d**2,
  'yogi': lambda v, d: v - 0.05 * d**2 * np.sign(v - d**2),
  'adagrad': lambda v, d: v + d**2,
}


@pytest.mark.parametrize('name', SECOND)
def test_two_rounds_of_the_adaptive_ones(name):
  """Reddi et al., Algorithm 2, without a correction of moments."""
  weights, first, second = np.ones((3, 2)), 0.0, np.full((3, 2), 0.01**2)
  rounds = sent(0), sent(1)
  for uploads in rounds:
    moved = mean(uploads, KERNEL) - weights
    first = 0.8 * first + 0.2 * moved
    second = SECOND[name](second, moved)
    weights = weights + 0.1 * first / (np.sqrt(second) + 0.01)
  kernel, _ = serve(
    *rounds, name=name, lr=0.1, momentum=0.8, beta2=0.95, tau=0.01
  )
  np.testing.assert_allclose(kernel, weights, rtol=1e-5)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_equal_models_do_not_move(name):
  start = handmade.variables(1.0, 0.0, 2.0)
  same = handmade.same_uploads({n: start[n] for n in (KERNEL, MEAN)}, 2)
  server, _ = handmade.serve(
    (FEDPAV, fedopt.make(fedopt.Options(name=name))), start, same
  )
  np.testing.assert_allclose(server.shared[KERNEL], 1.0, atol=1e-5)


def test_unknown_optimiser():
  with pytest.raises(errors.ConfigError, match='adma.*did you mean adam'):
    fedopt.make(fedopt.Options(name='adma'))


def test_one_step_moves_towards_the_mean():
  uploads = sent(4)
  for name in OPTIMIZERS:
    kernel, _ = serve(uploads, name=name, lr=1e-3)
    assert ((kernel - 1.0) * (mean(uploads, KERNEL) - 1.0) > 0).all(), name
