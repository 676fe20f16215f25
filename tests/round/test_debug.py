"""Rounds in plain Python."""

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import fedavg, fedpav
from fedreid_jax.core import types
from fedreid_jax.method.component import ClientHooks, Component, ServerHooks
from fedreid_jax.method.sums import MessageSum, by_count
from fedreid_jax.round import cohort, compose, debug, placement
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.round.cohorts import Cohorts
from fedreid_jax.round.server import gathering
from fedreid_jax.round.settings import SimulationOptions


def watched(component, **place):
  (made,) = debug.watched([component], debug.Place(**place))
  return made


def mixed(variables, state, ctx):
  return (variables['a'] + state).sum(), {}


def test_an_error_names_the_hook_its_place_and_its_arguments():
  made = Component('mix', client=ClientHooks(loss=mixed))
  hooks = watched(made, client='ash', round_=2, step=3).client
  state, variables = jnp.zeros(3), {'a': jnp.zeros((2, 4))}
  with pytest.raises(errors.HookError, match='Incompatible') as caught:
    hooks.loss(variables, state, None)
  assert caught.value.where == (
    "component 'mix', hook client.loss, client ash, round 2, step 3"
  )
  assert caught.value.fix == (
    'change the hook; its arguments: variables = a float32[2,4]; '
    'state = float32[3]; ctx = no arrays'
  )
  assert isinstance(caught.value.__cause__, ValueError)
  assert caught.value.line().startswith('error[70]: ValueError: ')


def added(state, sums, valid, ctx):
  return jnp.stack([state, sums])


@pytest.mark.parametrize(
  'hook, args, what',
  [
    ('client.loss', (0, 1, 2), r'the loss is no number but float32\[2\]'),
    ('client.post_step', (jnp.zeros(2), 1), r'float32\[1\] in place of float3'),
    ('server.receive.finish', (jnp.zeros(2),) * 4, r'\[2,2\] in place of'),
  ],
)
def test_results_that_a_compiled_round_refuses_are_errors(hook, args, what):
  received = MessageSum(lambda *_: (1.0, 0), added, by_count, 1.0)
  made = watched(
    Component(
      'mine',
      client=ClientHooks(
        loss=lambda *_: (jnp.zeros(2), {}), post_step=lambda *_: jnp.zeros(1)
      ),
      server=ServerHooks(receive=received),
    ),
    client='ash',
  )
  for part in hook.split('.'):
    made = getattr(made, part)
  with pytest.raises(errors.HookError, match=what) as caught:
    made(*args)
  assert f"component 'mine', hook {hook}" in caught.value.where
  assert ('ash' in caught.value.where) == hook.startswith('client')


def test_an_error_of_another_hook_keeps_its_place():
  def gradient(params, ctx):
    return ctx(params), {}

  def refuse(*_):
    raise errors.ConfigError('no public images', 'data.public', 'name one')

  made = Component('mine', client=ClientHooks(gradient=gradient, loss=refuse))
  hooks = watched(made).client
  with pytest.raises(errors.ConfigError, match='no public images'):
    hooks.gradient(1.0, hooks.loss)


def test_a_long_argument_is_one_line():
  tree = {f'params/{k}': np.zeros((k, 2)) for k in range(20)}
  text = debug.described(tree)
  assert text.startswith('params/0 float64[0,2], params/1 float64[1,2]')
  assert text.endswith(' and 14 arrays more') and len(text) < 200


IMAGES = handmade.pixels([[9, 2, 3], [4, 8, 6], [1, 1, 7], [0, 5, 5]])


def client(name):
  labels = np.array([0, 1, 2, 0], np.int32)
  return types.ClientData(name, lambda: IMAGES, labels, labels, labels, 3)


def runner(components):
  """Returns a runner in plain Python, and the arguments of its first round."""
  place, clients = debug.Place(), [client('ash'), client('elm')]
  method = handmade.algorithm(debug.watched(components, place))
  uploads = gathering.Uploads('', 2, 100, True)
  options = SimulationOptions(0, 1.0, 1, 0, (2, 2), 2, uploads, 1)
  plan = types.Plan(np.array([[0, 1], [2, 3]], np.int32), np.ones((2, 2), bool))
  planner = cohort.Planner(lambda *_: plan, lambda _: 2)
  cohorts, mesh = Cohorts(2, options), placement.make_mesh(1)
  made = debug.Debug(method, clients, planner, 2, options, mesh, place)
  start = handmade.variables(0.5, 0.25, 0.125)
  server = types.ServerState(
    {n: x[None] for n, x in start.items()},
    jnp.zeros(2, jnp.int32),
    {c.name: () for c in components},
  )
  kept = types.ClientState({}, {c.name: () for c in components}, ())
  store = ClientStore(lambda _: kept, kept, 2)
  return made, (server, store, cohorts.draw(0), 0)


def test_a_round_ends_at_the_first_wrong_hook():
  seen = []

  def pre_step(state, ctx):
    seen.append(float(ctx.batch.images.max()))  # a value, and no tracer
    raise ValueError('the first step')

  hooks = ClientHooks(pre_step=pre_step)
  made, given = runner((fedavg.make(), Component('wrong', client=hooks)))
  with pytest.raises(errors.HookError, match='the first step') as caught:
    made.run(*given, trains=True)
  assert caught.value.where == (
    "component 'wrong', hook client.pre_step, client ash, round 0, step 0"
  )
  assert 'batch.images float32[2,1,1,3], batch.labels' in caught.value.fix
  assert seen == [pytest.approx(0.9)] and not jax.config.jax_disable_jit


@pytest.mark.slow
def test_results_are_those_of_a_simulation(clients):
  components = compose.load(('fedpav', 'fedprox'), {}, algorithms)
  config, found = toy.toy_config(), []
  config = toy.replaced(config, {'model.features': (2,), 'local.steps': 1})
  for plainly in (True, False):
    config = toy.replaced(config, {'execution.debug': plainly})
    made, variables, _ = toy.make_rounds(config, clients[:2], components)
    found.append(toy.run(made, variables, 1))
  plain, simulated = found
  toy.assert_close_trees(plain[:2], simulated[:2], 1e-5)
  (mine,), (theirs,) = plain[2], simulated[2]
  assert mine.keys() == theirs.keys() and mine['up'] == theirs['up']
  toy.assert_close_trees(mine['per_client'], theirs['per_client'], 1e-5)


def test_plain_python_runs_on_one_device(clients):
  config = toy.toy_config()
  config = toy.replaced(config, {'execution.debug': True})
  with pytest.raises(errors.ConfigError, match='2 devices — execution.debug'):
    toy.make_rounds(config, clients, (fedpav.make(),), 2)
