import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import scaffold
from fedreid_jax.core import compose, optim
from fedreid_jax.core.component import FinishCtx, StepCtx

KERNEL, HEAD, MEAN = handmade.KERNEL, handmade.HEAD, handmade.MEAN


def controls(kernel, scores=0.0):
  own = handmade.variables(kernel, scores)
  return {n: own[n] for n in (KERNEL, HEAD)}


def test_gradient_of_the_term_is_the_difference_of_the_controls():
  """What stays at the client has no control at the server and no pull."""
  sent = handmade.broadcast({}, scaffold={KERNEL: controls(3.0)[KERNEL]})
  ctx = handmade.context(StepCtx, broadcast=sent)
  loss = scaffold.make().term.loss
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
    FinishCtx,
    broadcast=handmade.broadcast({}, scaffold={KERNEL: controls(0.5)[KERNEL]}),
    work=handmade.work(num_steps=num_steps),
    start=handmade.variables(1.0, 1.0),
    variables=handmade.variables(0.4, 0.0),
    optimizer=optimizer,
    lr=jnp.float32(0.1),
  )
  return scaffold.make().term.finish(controls(0.25), ctx)


@pytest.mark.parametrize(
  'optimizer, gradient',
  [
    (optim.sgd(0.0, False, 0.0), 0.6 / 0.3),
    # heavy ball of 0.5: three gradients count 1 + 1.5 + 1.75 times
    (optim.sgd(0.5, False, 0.0), 0.6 / 0.425),
    (optim.sgd(0.0, False, 0.0, (('params/backbone', 2.0),)), 0.6 / 0.6),
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
    finish(optim.sgd(0.0, False, 0.0)._replace(accumulated=None))


def test_the_server_adds_what_arrived_over_all_clients():
  slot = {KERNEL: jnp.ones((3, 2))}, jnp.float32(8.0)
  changes = jnp.broadcast_to(
    jnp.array([2.0, jnp.nan, 4.0])[:, None, None], (3, 3, 2)
  )
  sent = handmade.uploads({KERNEL: changes})
  sent = sent.replace(extras={'scaffold': {KERNEL: changes}})
  step = scaffold.make().server_step
  (control, _) = step.collect(slot, sent, jnp.array([True, False, True]))
  np.testing.assert_allclose(control[KERNEL], 1 + (2 + 4) / 8)


@pytest.fixture(scope='module')
def rounds(clients):
  """Two rounds of FedPav without and with the correction."""
  config, ends = toy.toy_config(), []
  config.local.steps = 3
  for names in (('fedpav',), ('fedpav', 'scaffold')):
    made = compose.load(names, {}, algorithms)
    executor, variables, _ = toy.build(config, clients[:3], made)
    server, states = executor.init(variables)
    found = [jax.device_get((server, jax.tree.map(np.copy, states)))]
    for round_ in range(2):
      server, _ = executor.round(server, states, round_)
      found.append(jax.device_get((server, jax.tree.map(np.copy, states))))
    ends.append(found)
  return ends


def test_controls_start_at_zero_and_the_first_round_is_fedpav(rounds):
  plain, corrected = rounds
  start, states = corrected[0]
  for leaf in jax.tree.leaves((start.slots['scaffold'][0], states.slots)):
    assert not leaf.any()
  toy.assert_close_trees(plain[1][0].shared, corrected[1][0].shared, 1e-6)
  name = 'params/backbone/conv1/kernel'
  assert (plain[2][0].shared[name] != corrected[2][0].shared[name]).any()


def test_the_servers_control_is_the_mean_of_all_clients(rounds):
  for server, states in rounds[1][1:]:
    control, _ = server.slots['scaffold']
    own = states.slots['scaffold']
    for name, leaf in control.items():
      assert np.abs(leaf).max() > 0
      np.testing.assert_allclose(
        own[name].mean(axis=0), leaf, atol=1e-5 * np.abs(own[name]).max()
      )
    assert not own['params/classifier/kernel'].any()
