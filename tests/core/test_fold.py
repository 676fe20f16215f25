"""Streamed rounds against stacked ones, and what they leave out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.core import compose, param_filter, sums
from fedreid_jax.core.component import (
  Aggregation,
  ClientHooks,
  Component,
  ComponentInfo,
  ServerHooks,
  Transport,
)

METHODS = [
  (('fedpav',), {}),
  (('fedpav', 'uniform'), {}),
  (('fedpav', 'cdw'), {}),
  (('fedpav', 'fednova'), {}),
  (('fedpav', 'fednova', 'fedprox'), {'fednova': {'mu': 0.01}}),
  (('fedpav', 'scaffold'), {}),
  (('fedpav', 'scaffold'), {'scaffold': {'weights': 'uniform'}}),
  (('fedpav', 'fedopt'), {'fedopt': {'name': 'sgd', 'lr': 1.0}}),
  (('fedpav', 'dfh'), {'dfh': {'lam': 0.1}}),
  (('fedpav', 'dppt'), {}),
  (('fedpav', 'dppt'), {'dppt': {'absent': 'zeros', 'norm': False}}),
  (('fedpav', 'noise'), {}),
  (('fedavg', 'fedatt'), {}),
]
NAMES = ['+'.join(names) + '-'.join(given) for names, given in METHODS]
# One that has every kind of sum, and one whose weights are by parameter.
FAST = ((('fedpav', 'scaffold'), {}), (('fedpav', 'fednova'), {}))
PARAMS = [
  pytest.param(*method, id=f'{name}{k}', marks=[])
  if method in FAST
  else pytest.param(*method, id=f'{name}{k}', marks=pytest.mark.slow)
  for k, (method, name) in enumerate(zip(METHODS, NAMES, strict=True))
]


def components(names, given=()):
  return compose.load(names, dict(given), algorithms)


def result(clients, made, devices=1, rounds=1, **fields):
  """Server, states and logs of a method on a toy federation."""
  config = toy.toy_config()
  config.optim.lr = 0.005
  for field, value in fields.items():
    group = config if field in config else config.execution
    group[field] = value
  executor, variables, _ = toy.make_executor(config, clients, made, devices)
  return toy.run(executor, variables, rounds)


@pytest.mark.parametrize('names, given', PARAMS)
def test_a_streamed_round_is_the_stacked_one(clients, names, given):
  made = components(names, given)
  exact = 'fedatt' not in names
  one = result(clients, made, deterministic=exact, reduction='stacked')
  for deterministic in {exact, False}:
    many = result(
      clients, made, 2, deterministic=deterministic, reduction='stream'
    )
    toy.assert_close_trees(one[0], many[0], 1e-6)
    toy.assert_close_trees(one[1], many[1], 1e-6)
    log, other = one[2][0], many[2][0]
    assert log['up'] == other['up'] and log['down'] == other['down']
    for name in log.keys() & {'weights', 'entropy'}:
      np.testing.assert_allclose(log[name], other[name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('rule', ['first_client', 'keep_server'])
def test_rules_for_running_statistics(clients, rule):
  """The client sampled first is the third of four here."""
  made = components(('fedpav',))
  fields = {'batch_stats_rule': rule, 'fraction': 0.75, 'seed': 2}
  one = result(clients, made, reduction='stacked', **fields)
  many = result(clients, made, 2, reduction='stream', **fields)
  _, before = param_filter.trainable(one[0].shared)
  _, after = param_filter.trainable(many[0].shared)
  toy.assert_equal_trees(before, after)


@pytest.mark.slow
@pytest.mark.parametrize('width, devices', [(2, 1), (3, 1), (0, 2)])
def test_clients_may_be_vmapped(clients, width, devices):
  made = components(('fedpav', 'scaffold'))
  one = result(clients, made, deterministic=False, reduction='stacked')
  many = result(
    clients,
    made,
    devices,
    deterministic=False,
    width=width,
    reduction='stream',
  )
  toy.assert_close_trees(one[0], many[0], 1e-5)
  toy.assert_close_trees(one[1], many[1], 1e-5)


@pytest.mark.exact
@pytest.mark.parametrize(
  'names', [('fedpav', 'dfh', 'cdw'), ('fedpav', 'dppt', 'scaffold')], ids=str
)
def test_any_number_of_devices_gives_the_same_bits(clients, names):
  """On each number of devices the clients have other places."""
  made = components(names)
  one = result(clients, made, rounds=2, reduction='stream')
  for devices in (2, 4, 8):
    many = result(clients, made, devices, rounds=2, reduction='stream')
    toy.assert_equal_trees(one[0], many[0])
    toy.assert_equal_trees(one[1], many[1])


@pytest.mark.exact
def test_segments_give_the_bits_of_resident_images(clients):
  made = components(('fedpav', 'dfh'))
  whole = result(clients, made, 2, rounds=2, reduction='stream')
  cut = result(
    clients,
    made,
    2,
    rounds=2,
    reduction='stream',
    image_budget_mb=700 / 2**20,
  )
  toy.assert_equal_trees(whole[0], cut[0])
  toy.assert_equal_trees(whole[1], cut[1])


def spoiled(value):
  """Replaces a number in the upload of the second client."""

  def up(upload, received, key):
    del received, key
    name = 'params/backbone/conv1/kernel'
    kernel = upload.shared[name]
    bad = jnp.where(upload.index == 1, value, kernel.ravel()[0])
    shared = upload.shared | {name: kernel.at[0, 0, 0, 0].set(bad)}
    return upload.replace(shared=shared)

  return Component('spoiled', transport=Transport(up=up))


@pytest.mark.parametrize('value', [np.nan, np.inf, 100.0])
def test_a_round_without_a_client_that_is_left_out(clients, value):
  made = (*components(('fedpav',)), spoiled(value))
  server, _, logs = result(clients, made, reduction='stream')
  assert logs[0]['valid'].tolist() == [True, False, True, True]
  assert logs[0]['out_of_range'].tolist() == [False, value == 100.0] + [
    False
  ] * 2
  others = tuple(c for k, c in enumerate(clients) if k != 1)
  alone, _, _ = result(others, components(('fedpav',)), reduction='stream')
  toy.assert_close_trees(server.shared, alone.shared, 1e-7)
  assert logs[0]['weights'][1] == 0.0


def test_a_component_that_reads_uploads_is_named_when_traced(clients):
  def update(state, models, ctx):
    return state, jax.tree.map(lambda x: x.mean(axis=0)[None], ctx.uploaded)

  made = components(('fedpav',))
  secret = Component('secret', server=ServerHooks(update=update))
  with pytest.raises(errors.ConfigError, match="'secret' reads ctx.uploaded"):
    result(clients, (*made, secret), reduction='stream')


def test_a_sum_beyond_its_bound_gives_weights_by_size(clients):
  """A rule that breaks its promise cannot wrap a sum."""

  def raw(message, ctx):
    del message
    return ctx.num_examples * 100.0

  rule = Aggregation(raw=raw, bound=sums.by_count)
  wrong = Component('wrong', aggregation=rule)
  made = components(('fedpav',))
  found, _, logs = result(clients, (*made, wrong), reduction='stream')
  assert logs[0]['fell_back']
  by_size, _, _ = result(clients, made, reduction='stream')
  toy.assert_equal_trees(found.shared, by_size.shared)


def test_the_memory_of_a_round_does_not_grow_with_its_clients():
  """Of one device, beside the arguments, which have the images."""
  clients = tuple(toy.toy_client(f'c{k:02}', 4) for k in range(64))
  config = toy.toy_config()
  config.model.features = (32, 64)
  config.execution.reduction = 'stream'
  shared = 'params/backbone.*'
  made = (
    Component('some', shared=shared, client=ClientHooks()),
    *components(('dfh',)),
  )
  found = []
  for num in (8, 64):
    executor, variables, _ = toy.make_executor(config, clients[:num], made)
    server, states = executor.init(variables)
    program = executor.programs(server, states)['training'].lower().compile()
    memory = program.memory_analysis()
    found.append(memory.temp_size_in_bytes)
  model, _ = param_filter.split(variables, shared)
  size = sum(x.size * x.dtype.itemsize for x in model.values())
  assert found[1] - found[0] < size  # 56 models if uploads were stacked


def test_info_declares_what_needs_uploads():
  assert not ComponentInfo().needs_uploads
  assert components(('kd',))[0].info.needs_uploads
