"""What every module of `algorithms/` promises, whatever it does."""

import importlib

import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import plugins
from fedreid_jax.data import client_split
from fedreid_jax.models import resnet
from fedreid_jax.training import contract

NAMES = plugins.available(algorithms)
# What a component that works on a network of its own needs.
NETWORKS = {
  'snr': {'variant': 'snr'},
  'mixstyle': {'variant': 'mixstyle'},
  'ccst': {'variant': 'ccst'},
  'fedsr': {'variant': 'fedsr'},
  'deen': {'variant': 'deen', 'modality_specific_stages': 1, 'neck': 'bnneck'},
  'lba': {
    'variant': 'lba',
    'modality_specific_stages': 1,
    'neck': 'bnneck',
    'pool': 'gem',
  },
  'dns': {
    'variant': 'dns',
    'modality_specific_stages': 3,
    'neck': 'bnneck',
    'pool': 'gem',
  },
}
# Losses without a state, on networks that take a minute to compile for lanes.
LOSSES = ('deen', 'lba', 'snr')


@pytest.fixture(scope='module', autouse=True)
def _shallow():
  """A block a stage: what is promised does not depend on the depth."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))
    yield


def config_of(name):
  """A toy configuration with the network a component needs."""
  config = toy.toy_config()
  # Networks with mined negatives amplify the last bit.
  config.optim.lr = 0.0005 if name in NETWORKS else 0.005
  for field, value in NETWORKS.get(name, {}).items():
    config.model[field] = value
  if name == 'caj':
    config.local.batch = 6  # three parts
  if name == 'dpsgd':
    config.model.norm = 'group'
    config.local.sampler, config.local.steps = 'poisson_pk', 3
  if config.model.modality_specific_stages:
    config.model.name, config.model.width = 'resnet18', 1 / 32
    config.model.small_stem = True
  return config


# Two rounds of every method take longer than the default run allows. These
# have all hooks between them, and state at the clients and at the server.
DEFAULT = ('fedpav', 'scaffold', 'cdw', 'dfh')
PARAMS = [
  name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow)
  for name in NAMES
]


@pytest.fixture(scope='module', params=PARAMS)
def name(request):
  return request.param


@pytest.fixture(scope='module')
def components(name):
  return contract.method(name)


@pytest.fixture(scope='module')
def clients(components):
  if 'pseudo_labels' in components[-1].properties:
    return client_split.hide_labels(toy.toy_clients(), ('all',))
  return toy.toy_clients()


@pytest.fixture(scope='module')
def rounds(name, components, clients):
  """Two rounds of a method on three of four clients."""
  return contract.run_twice(config_of(name), clients, components)


@pytest.mark.parametrize('method', NAMES)
def test_make_returns_a_component_of_its_name(method):
  assert not contract.named(method, contract.method(method)[-1])


@pytest.mark.parametrize('method', NAMES)
def test_module_declares_its_options_and_its_deviations(method):
  module = importlib.import_module(f'fedreid_jax.algorithms.{method}')
  assert not contract.declared(module)
  assert not contract.documented(module)


def test_one_trace(rounds):
  assert not contract.traced_once(rounds)


def test_pure(rounds):
  assert not contract.pure(rounds)


def test_finite(rounds):
  assert not contract.finite(rounds)


@pytest.mark.slow
def test_placements_agree(name, rounds, components, clients):
  if name in LOSSES or not any(c.client or c.server for c in components):
    pytest.skip('no state that could be at the wrong place')
  assert not contract.placed(rounds, config_of(name), clients, components)


def test_checkpoint_round_trip(rounds, tmp_path):
  assert not contract.restored(rounds, tmp_path)
