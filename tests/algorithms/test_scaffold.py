import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import scaffold
from fedreid_jax.core import types
from fedreid_jax.data import augment, federation
from fedreid_jax.method import component, optimizers
from fedreid_jax.method.contexts import (
  LossCtx,
  ReceiveCtx,
  RoundEndCtx,
  ServerInitCtx,
)
from fedreid_jax.round import compose, placement
from fedreid_jax.training import engine

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN


def controls(kernel, scores=0.0):
  own = handmade.variables(kernel, scores)
  return {n: own[n] for n in (KERNEL, HEAD)}


def test_gradient_of_the_term_is_the_difference_of_the_controls():
  """What stays at the client has no control at the server and no pull."""
  ctx = handmade.context(LossCtx, message={KERNEL: controls(3.0)[KERNEL]})
  loss = scaffold.make().client.loss
  own = handmade.variables(8.0, 9.0, 7.0)
  value, grads = jax.value_and_grad(
    lambda v: loss(v, controls(0.5, 4.0), ctx)[0]
  )(own)
  assert value == 0
  np.testing.assert_allclose(grads[KERNEL], 2.5)
  assert not grads[HEAD].any() and not grads[MEAN].any()


def finish(optimizer, num_steps=3):
  """A client with c_k = 0.25 and c = 0.5 that moved from 1 to 0.4 at 0.1."""
  ctx = handmade.context(
    RoundEndCtx,
    message={KERNEL: controls(0.5)[KERNEL]},
    task=handmade.task(num_steps=num_steps),
    start=handmade.variables(1.0, 1.0),
    variables=handmade.variables(0.4, 0.0),
    optimizer=optimizer,
    lr=jnp.float32(0.1),
  )
  return scaffold.make().client.round_end(controls(0.25), ctx)


@pytest.mark.parametrize(
  'optimizer, gradient',
  [
    (optimizers.sgd(0.0, False, 0.0), 0.6 / 0.3),
    # heavy ball of 0.5: three gradients count 1 + 1.5 + 1.75 times
    (optimizers.sgd(0.5, False, 0.0), 0.6 / 0.425),
    (optimizers.sgd(0.0, False, 0.0, (('params/backbone', 2.0),)), 0.6 / 0.6),
  ],
  ids=['plain', 'momentum', 'multiplier'],
)
def test_worked_control(optimizer, gradient):
  """The correction cancels: what is left is the mean of the gradients."""
  slot, change = finish(optimizer)
  assert change.keys() == {KERNEL}
  np.testing.assert_allclose(change[KERNEL], gradient - 0.5, rtol=1e-5)
  np.testing.assert_allclose(slot[KERNEL], 0.25 - 0.5 + gradient, rtol=1e-5)
  assert not slot[HEAD].any()


def test_only_sgd_can_be_counted():
  with pytest.raises(errors.ConfigError, match='optim.name'):
    finish(optimizers.sgd(0.0, False, 0.0)._replace(effective_steps=None))


@pytest.mark.parametrize(
  'weights, first, third', [('size', 1 / 8, 5 / 8), ('uniform', 1 / 4, 1 / 4)]
)
def test_the_server_adds_what_arrived(weights, first, third):
  """Of four clients three are drawn, the second is lost, in another order."""
  step = scaffold.make(scaffold.Options(weights=weights)).server
  shared = {KERNEL: jnp.ones((3, 2))}
  sizes = jnp.array([5.0, 1.0, 1.0, 1.0])
  slot = step.init(
    handmade.context(ServerInitCtx, shared=shared, sizes=sizes, num_clients=4)
  )
  assert not slot[0][KERNEL].any()
  changes = jnp.array([2.0, jnp.nan, 4.0])[:, None, None] * jnp.ones((3, 3, 2))
  (control, _) = step.receive(
    slot,
    {KERNEL: changes},
    jnp.array([True, False, True]),
    ReceiveCtx(jnp.array([1, 3, 0])),
  )
  expected = 2 * first + 4 * third
  np.testing.assert_allclose(control[KERNEL], expected, rtol=1e-6)


@pytest.fixture(scope='module')
def rounds(clients):
  """Two rounds of FedPav without and with the correction."""
  config, ends = toy.toy_config(), []
  config = toy.replaced(config, {'local.steps': 3})
  for names in (('fedpav',), ('fedpav', 'scaffold')):
    made = compose.load(names, {}, algorithms)
    executor, variables, _ = toy.make_rounds(config, clients[:3], made)
    server, states = executor.init(variables)
    found = [jax.device_get((server, states.stacked()))]
    for round_ in range(2):
      server, _ = executor.round(server, states, round_)
      found.append(jax.device_get((server, states.stacked())))
    ends.append(found)
  return ends


@pytest.mark.slow
def test_controls_start_at_zero_and_the_first_round_is_fedpav(rounds):
  plain, corrected = rounds
  start, states = corrected[0]
  for leaf in jax.tree.leaves((start.states['scaffold'][0], states.states)):
    assert not leaf.any()
  toy.assert_close_trees(plain[1][0].shared, corrected[1][0].shared, 1e-6)
  name = 'params/backbone/conv1/kernel'
  assert (plain[2][0].shared[name] != corrected[2][0].shared[name]).any()


@pytest.mark.slow
def test_the_servers_control_is_the_mean_by_size(rounds, clients):
  sizes = [client.num_images for client in clients[:3]]
  for server, states in rounds[1][1:]:
    control, _ = server.states['scaffold']
    own = states.states['scaffold']
    for name, leaf in control.items():
      assert np.abs(leaf).max() > 0
      mean = np.average(own[name], axis=0, weights=sizes)
      np.testing.assert_allclose(
        mean, leaf, atol=1e-5 * np.abs(own[name]).max()
      )
    assert not own['params/classifier/kernel'].any()


WEIGHT = 'params/w'
QUADRATICS = ((1, 10, 3), (4, 20, 1), (15, 90, 2))  # images, centre, curvature


def quadratic(variables, state, ctx: LossCtx):
  """Curvature / 2 (w - centre)^2; images hold the centre, cameras the other."""
  del state
  centre = ctx.batch.images[:, 0, 0, 0]
  gap = 0.5 * ctx.batch.cameras * (variables[WEIGHT] - centre) ** 2
  return gap.mean(), {}


def ends_at(names, fraction=1.0, rounds=60, **arguments):
  """The server's weight after rounds of five steps on `QUADRATICS`."""

  def apply(variables, images, **_):
    column = jnp.zeros((len(images), 1))
    return types.Outputs(column, column, column), {}

  config = toy.replaced(
    toy.toy_config(),
    {
      'loss.identity': 0.0,
      'optim.weight_decay': 0.0,
      'optim.lr': 0.1,
      'optim.momentum': 0.0,
      'optim.nesterov': False,
      'fraction': fraction,
      'local.batch': 1,
      'local.steps': 5,
      'augment.pad': 0,
      'augment.flip': 0.0,
    },
  )
  clients = tuple(
    types.ClientData(
      f'client{k}',
      lambda size=size, centre=centre: np.full((size, 1, 1, 1), centre, 'u1'),
      np.zeros(size, np.int32),
      np.full(size, curvature, np.int32),
      np.zeros(size, np.int32),
      1,
    )
    for k, (size, centre, curvature) in enumerate(QUADRATICS)
  )
  views = augment.make(config.augment, (0.0,), (1 / 255,))
  shape = (1, 1, 1)
  everything = federation.Federation(
    clients, (), shape, (0.0,), (1 / 255,), 'quadratics'
  )
  start = {WEIGHT: jnp.float32(50.0)}
  model = types.Model(
    init=lambda key: start,
    apply=apply,
    measure=apply,
    classify=lambda own, x, num=None: x,
  )
  term = component.ClientHooks(loss=quadratic)
  executor = engine.make_rounds(
    config,
    everything,
    model,
    (
      component.Component('quadratic', client=term),
      *compose.load(names, {'scaffold': arguments}, algorithms),
    ),
    views,
    placement.make_mesh(1),
  )
  server, _, _ = toy.run(executor, start, rounds)
  return float(server.shared[WEIGHT][0])


def optimum(weighted):
  sizes, centres, curvatures = np.array(QUADRATICS, float).T
  share = curvatures * (sizes if weighted else 1.0)
  return np.average(centres, weights=share)


@pytest.mark.slow
def test_the_fixed_point_is_the_optimum_by_size():
  """Three clients whose sizes, centres and curvatures differ."""
  found = ends_at(('fedavg', 'scaffold'))
  np.testing.assert_allclose(found, optimum(weighted=True), rtol=1e-4)
  # Local steps of clients that curve differently pull plain averaging away.
  plain = ends_at(('fedavg',))
  assert abs(plain - optimum(weighted=True)) > 0.1


def test_the_fixed_point_of_the_papers_pair_is_the_uniform_optimum():
  found = ends_at(('fedavg', 'scaffold'), weights='uniform')
  np.testing.assert_allclose(found, optimum(weighted=False), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('weights', ('size', 'uniform'))
def test_a_cohort_does_not_move_the_fixed_point(weights):
  """Two of three clients a round: the control stays the mean over all."""
  found = ends_at(('fedavg', 'scaffold'), 0.5, rounds=300, weights=weights)
  expected = optimum(weighted=weights == 'size')
  np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_unknown_weights():
  with pytest.raises(errors.ConfigError, match='scaffold.weights.*mean size'):
    scaffold.make(scaffold.Options(weights='sizes'))
