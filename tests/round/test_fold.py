"""Sums of uploads against gathered uploads, and what they leave out."""

import dataclasses

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.algorithms import dppt
from fedreid_jax.core import trees, types
from fedreid_jax.method import sums
from fedreid_jax.method.component import (
  Component,
  ServerHooks,
)
from fedreid_jax.round import ahead, compose

# Method, hyper-parameters, mode. Every rule is in the test of sums below; the
# fast tests train one method, which has sums of every kind.
METHODS = [
  (('fedpav', 'scaffold'), {}, True),
  (
    ('fedpav', 'dfh', 'cdw', 'fedopt'),
    {'dfh': {'lam': 0.1}, 'fedopt': {'name': 'sgd', 'lr': 1.0}},
    True,
  ),
  (('fedpav', 'dppt', 'fednova'), {'dppt': {'absent': 'zeros'}}, False),
]
PARAMS = [
  pytest.param(
    *method,
    id='+'.join(method[0]),
    marks=[pytest.mark.slow] * bool(k),
  )
  for k, method in enumerate(METHODS)
]


def components(names, given=()):
  return compose.load(names, dict(given), algorithms)


def result(clients, made, devices=1, rounds=1, **fields):
  """Server, states and logs of a method on a toy federation."""
  config = toy.toy_config()
  config = toy.replaced(config, {'optim.lr': 0.005, 'model.features': (4,)})
  config = toy.replaced(config, fields)
  executor, variables, _ = toy.make_rounds(config, clients, made, devices)
  return toy.run(executor, variables, rounds)


def changes(scale):
  """Changes of a control by four clients."""
  return {handmade.KERNEL: scale * jnp.arange(24.0).reshape(4, 3, 2)}


def centres():
  """Centres of three identities, of which four clients have some."""
  present = jnp.array([[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]], bool)
  features = jnp.arange(24.0).reshape(4, 3, 2) - 5.0
  return dppt.Prototypes(features, present)


def _is_list(value):
  return isinstance(value, list)


def dppt_of_two_features():
  """DPPT for a network whose outputs have known shapes."""
  two = jnp.zeros((2, 2))
  outputs = types.Outputs(two, two, jnp.zeros((2, 3)))
  (made,) = components(('dppt',))

  def init(ctx):
    return made.server.init(dataclasses.replace(ctx, outputs=outputs))

  return made._replace(server=made.server._replace(init=init))


@pytest.mark.parametrize('exact', [True, False])
@pytest.mark.parametrize(
  'names, messages',
  [
    (('fedpav',), {}),
    (('fedpav', 'uniform'), {}),
    (('fedpav', 'cdw'), {'cdw': [0.5, 0.125, 1.5, 0.25]}),
    (('fedpav', 'cdw'), {'cdw': [0.0, 0.0, 0.0, 0.0]}),
    (('fedpav', 'fednova'), {'fednova': [2.0, 9.0, 1.0, 4.5]}),
    pytest.param(
      ('fedpav', 'scaffold'),
      {'scaffold': changes(0.1)},
      marks=pytest.mark.slow,
    ),
    (('fedpav', 'dppt'), {'dppt': centres()}),
  ],
  ids=lambda value: '+'.join(value) if isinstance(value, tuple) else '',
)
def test_sums_are_those_of_gathered_uploads(names, messages, exact):
  """The third client has a number that is not finite."""
  made = tuple(
    dppt_of_two_features() if name == 'dppt' else components((name,))[0]
    for name in names
  )
  rng = np.random.default_rng(1)
  server = handmade.variables(1.0, 2.0, 3.0)
  shared, _ = trees.split(server, compose.shared_leaves(made))
  sent = handmade.uploads(
    {n: x + rng.standard_normal((4, *x.shape)) for n, x in shared.items()},
    sizes=[3, 50, 7, 11],
    steps=[1, 4, 2, 3],
  )
  sent.shared[handmade.MEAN] = sent.shared[handmade.MEAN].at[2].set(np.nan)
  messages = jax.tree.map(jnp.asarray, messages, is_leaf=_is_list)
  sent = sent.replace(messages=messages)
  gathered, log = handmade.serve((*made, handmade.READER), server, sent)
  summed, other = handmade.serve(made, server, sent, exact=exact)
  toy.assert_close_trees(gathered, summed, 1e-6)
  assert other['valid'].tolist() == [True, True, False, True]
  assert not other['out_of_range'].any()
  assert log['fell_back'] == other['fell_back']
  for name in log.keys() & {'weights', 'entropy'}:
    np.testing.assert_allclose(log[name], other[name], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('names, given, deterministic', PARAMS)
def test_a_round_of_sums_is_the_gathered_one(
  clients, names, given, deterministic
):
  made = components(names, given)
  fields = {'execution.deterministic': deterministic}
  one = result(clients, (*made, handmade.READER), **fields)
  many = result(clients, made, 2, **fields)
  toy.assert_close_trees(one[0], many[0], 1e-6)
  toy.assert_close_trees(one[1], many[1], 1e-6)
  log, other = one[2][0], many[2][0]
  assert log['up'] == other['up'] and log['down'] == other['down']
  for name in log.keys() & {'weights', 'entropy'}:
    np.testing.assert_allclose(log[name], other[name], rtol=1e-5)


@pytest.mark.slow
def test_the_statistics_of_the_first_client(clients):
  """The client sampled first is the third of four here."""
  made = components(('fedpav',))
  fields = {'batch_stats_rule': 'first_client', 'fraction': 0.75, 'seed': 2}
  one = result(clients, (*made, handmade.READER), **fields)
  many = result(clients, made, 2, **fields)
  _, before = trees.trainable(one[0].shared)
  _, after = trees.trainable(many[0].shared)
  toy.assert_equal_trees(before, after)


@pytest.mark.exact
def test_gathered_uploads_have_the_same_bits_on_any_device(clients):
  """Sums are compared in test_waves.py: gathered uploads have no waves."""
  made = components(('fedpav', 'robust'))
  fields = {'rounds': 2, 'local.epochs': 2}
  one = result(clients, made, **fields)
  cut = {'execution.image_budget_mb': 700 / 2**20}
  for devices, budget in ((2, {}), (8, {}), (1, cut)):
    many = result(clients, made, devices, **fields, **budget)
    toy.assert_equal_trees(one[0], many[0])
    toy.assert_equal_trees(one[1], many[1])


@pytest.mark.parametrize('value', [np.nan, np.inf, 100.0])
def test_the_sums_are_those_without_a_client_that_is_left_out(value):
  """A change of 100 is out of the range of an array below one."""
  rng = np.random.default_rng(0)
  server = handmade.variables(0.5, 0.5, 0.5)
  made = components(('fedavg', 'uniform'))
  shared = {n: rng.standard_normal((4, *x.shape)) for n, x in server.items()}
  few = {n: x[[0, 2, 3]] for n, x in shared.items()}
  shared[handmade.KERNEL][1, 2, 1] = value
  found, log = handmade.serve(made, server, handmade.uploads(shared))
  alone, _ = handmade.serve(made, server, handmade.uploads(few))
  toy.assert_equal_trees(found.shared, alone.shared)
  assert log['valid'].tolist() == [True, False, True, True]
  assert log['out_of_range'].tolist() == [False, value == 100.0, False, False]
  assert log['weights'][1] == 0.0
  if value == 100.0:
    found, log = handmade.serve(
      made, server, handmade.uploads(shared), exact=False
    )
    assert log['valid'].all() and not log['out_of_range'].any()


@pytest.mark.parametrize('fallback', [False, True])
def test_weights_above_their_bound_are_not_used(fallback):
  """Their sum may have wrapped: the model stays, or is the mean by size."""
  rule = sums.Sum(
    weight=lambda message, ctx: ctx.num_examples,
    bound=sums.by_share,
    fallback=fallback,
  )
  made = Component('liar', shared='.*', aggregation=rule)
  server = handmade.variables(0.5)
  shared = {n: np.stack([x + 1, x + 2]) for n, x in server.items()}
  sent = handmade.uploads(shared, sizes=[3, 1])
  found, log = handmade.serve((made,), server, sent)
  assert bool(log['fell_back']) == fallback
  assert bool(log['stayed']) != fallback
  expected = {n: x + 1.25 * fallback for n, x in server.items()}
  got = {n: x[0] for n, x in found.shared.items()}
  toy.assert_close_trees(got, expected, 1e-6)


def test_a_component_that_reads_uploads_is_named_when_traced():
  def update(state, models, ctx):
    return state, jax.tree.map(lambda x: x.mean(axis=0)[None], ctx.uploaded)

  secret = Component('secret', server=ServerHooks(update=update))
  server = handmade.variables(1.0)
  with pytest.raises(errors.ConfigError, match="'secret' reads ctx.uploaded"):
    handmade.serve(
      (*components(('fedavg',)), secret),
      server,
      handmade.same_uploads(server, 2),
    )


def test_a_sum_beyond_its_bound_gives_weights_by_size():
  """A rule that breaks its promise cannot wrap a sum."""

  def weight(message, ctx):
    del message
    return ctx.num_examples * 100.0

  rng = np.random.default_rng(0)
  server = handmade.variables(1.0)
  sent = handmade.uploads(
    {n: rng.standard_normal((3, *x.shape)) for n, x in server.items()},
    sizes=[1, 2, 5],
  )
  made = components(('fedavg',))
  rule = sums.Sum(weight, sums.by_count, fallback=True)
  wrong = Component('wrong', aggregation=rule)
  found, log = handmade.serve((*made, wrong), server, sent)
  by_size, _ = handmade.serve(made, server, sent)
  assert log['fell_back']
  toy.assert_equal_trees(found.shared, by_size.shared)
  np.testing.assert_allclose(log['weights'], [1 / 8, 2 / 8, 5 / 8])


@pytest.mark.slow
@pytest.mark.parametrize('deterministic', [True, False])
def test_the_memory_of_a_round_does_not_grow_with_its_clients(deterministic):
  """The compiler's count, beside arguments, which have the images."""
  clients = tuple(toy.toy_client(f'c{k:02}', 4) for k in range(64))
  config = toy.replaced(
    toy.toy_config(),
    {
      'model.features': (32, 64),
      'execution.deterministic': deterministic,
      'execution.image_budget_mb': 5.0,
    },
  )
  found = []
  for num in (8, 64):
    executor, variables, _ = toy.make_rounds(
      config, clients[:num], components(('fedavg', 'uniform'))
    )
    server, states = executor.init(variables)
    program = (
      ahead.programs(executor, server, states)['training'].lower().compile()
    )
    memory = program.memory_analysis()
    found.append(memory.temp_size_in_bytes)
  model = sum(x.size * x.dtype.itemsize for x in variables.values())
  assert found[1] - found[0] < model  # 56 models if uploads were stacked
