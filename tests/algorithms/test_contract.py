"""What every module of `algorithms/` promises, whatever it does.

Two rounds run for a few methods, which together fill every hook and have every
property that a built-in component does. All other methods run from beginning
to end in tests/config/test_recipes.py.
"""

import importlib

import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import plugins
from fedreid_jax.data import client_split
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  ServerHooks,
  Transport,
)
from fedreid_jax.round import compose
from fedreid_jax.training import contract

NAMES = plugins.available(algorithms)
# Those of the default run have most hooks, and state at clients and server.
DEFAULT = ('fedpav fedprox scaffold cdw', 'fedpav dfh')
METHODS = (
  *DEFAULT,
  'fedpav client_clustering uniform local_models noise byzantine',
  'fedpav mixstyle cluster_contrast',
  'fedpav dacs',
  'fedpav fed_protoid',
  'fedpav dpsgd',
  'fedpav fedatt kd',
  'fedpav fedbuff',
  'fedpav secagg',
  'standalone',
)
PARAMS = [
  name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow)
  for name in METHODS
]
PARTS = {'client': ClientHooks, 'server': ServerHooks, 'transport': Transport}


def features(component):
  """Names of the hooks that a component fills, and its properties."""
  yield from component.properties
  for name, hooks in PARTS.items():
    plain = hooks()._asdict()
    given = getattr(component, name) or hooks()
    for hook, value in given._asdict().items():
      if value is not plain[hook]:
        yield f'{name}.{hook}'
  plain = Component('plain')._asdict()
  for field in component._fields:
    value = getattr(component, field)
    if field not in ('name', 'properties', *PARTS) and value != plain[field]:
      yield field
  # Sums and functions of all uploads are computed in different ways.
  receive = component.server and component.server.receive
  yield f'receive by {type(receive).__name__}'
  yield f'aggregation by {type(component.aggregation).__name__}'


def load(method):
  return compose.load(tuple(method.split()), {}, algorithms)


def config_of(components):
  """A toy configuration that a method can run with."""
  config = toy.replaced(toy.toy_config(), {'optim.lr': 0.005})
  if any(c.client and c.client.gradient for c in components):
    config = toy.replaced(
      config,
      {'model.norm': 'group', 'local.sampler': 'poisson_pk', 'local.steps': 3},
    )
  return config


@pytest.fixture(scope='module', params=PARAMS)
def components(request):
  return load(request.param)


@pytest.fixture(scope='module')
def clients(components):
  if any('pseudo_labels' in c.properties for c in components):
    return client_split.hide_labels(toy.toy_clients(), ('all',))
  return toy.toy_clients()


@pytest.fixture(scope='module')
def rounds(components, clients):
  """Two rounds of a method on three of four clients."""
  return contract.run_twice(config_of(components), clients, components)


@pytest.mark.parametrize('method', NAMES)
def test_make_returns_a_component_of_its_name(method):
  assert not contract.named(method, contract.method(method)[-1])


@pytest.mark.parametrize('method', NAMES)
def test_module_declares_its_options_and_its_deviations(method):
  module = importlib.import_module(f'fedreid_jax.algorithms.{method}')
  assert not contract.declared(module)
  assert not contract.documented(module)


def test_the_methods_that_run_have_every_hook_and_property():
  """A component with a new one is to be added to a method."""
  ran = {x for method in METHODS for c in load(method) for x in features(c)}
  assert {'client.loss', 'summation', 'before_first_round'} <= ran
  for name in NAMES:
    own = {*features(contract.method(name)[-1])}
    assert own <= ran, name


def test_one_trace(rounds):
  assert not contract.traced_once(rounds)


def test_pure(rounds):
  assert not contract.pure(rounds)


def test_finite(rounds):
  assert not contract.finite(rounds)


@pytest.mark.slow
def test_placements_agree(rounds, components, clients):
  config = config_of(components)
  assert not contract.placed(rounds, config, clients, components)


def test_checkpoint_round_trip(rounds, tmp_path):
  assert not contract.restored(rounds, tmp_path)
