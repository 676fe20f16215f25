"""What every module of `algorithms/` promises, whatever it does."""

import importlib

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import compose, plugins
from fedreid_jax.core.component import Component
from fedreid_jax.models import resnet
from fedreid_jax.training import checkpoint

NAMES = plugins.available(algorithms)
# What a component that works on a network of its own needs.
NETWORKS = {
  'snr': {'variant': 'snr'},
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


@pytest.fixture(scope='module', autouse=True)
def _shallow():
  """A block a stage: what is promised does not depend on the depth."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))
    yield


def config_of(name):
  """A toy configuration with the network a component needs."""
  config = toy.toy_config()
  for field, value in NETWORKS.get(name, {}).items():
    config.model[field] = value
  if config.model.modality_specific_stages:
    config.model.name, config.model.width = 'resnet18', 1 / 32
    config.model.small_stem = True
  return config


def recipe(name):
  """The component, on top of FedPav unless it shares leaves itself."""
  (component,) = compose.load((name,), {}, algorithms)
  if component.shared is not None:
    return (component,)
  return compose.load(('fedpav', name), {}, algorithms)


# Compiling a ResNet several times takes longer than the default run allows.
PARAMS = [
  pytest.param(name, marks=pytest.mark.slow)
  if 'modality_specific_stages' in NETWORKS.get(name, {})
  else name
  for name in NAMES
]


@pytest.fixture(scope='module', params=PARAMS)
def finished(request, clients):
  """Two rounds of a method on three of four clients."""
  config = config_of(request.param)
  config.fraction = 0.75
  traces = []
  executor, variables, _ = toy.make_executor(
    config, clients, recipe(request.param), traces=traces
  )
  first = toy.run(executor, variables, 1)
  num_traces = len(traces)
  again = toy.run(executor, variables, 2)
  return request.param, executor, variables, first, again, num_traces, traces


def test_make_returns_a_component_of_its_name(finished):
  component = recipe(finished[0])[-1]
  assert isinstance(component, Component)
  assert component.name == finished[0]


def test_module_cites_its_paper_and_its_deviations(finished):
  module = importlib.import_module(f'fedreid_jax.algorithms.{finished[0]}')
  doc = ' '.join(module.__doc__.split())
  assert 'Deviations from the paper' in doc
  assert 'released code' in doc


def test_one_trace(finished):
  assert len(finished[6]) == finished[5]


def test_pure(finished):
  """The same states again give the same round."""
  _, executor, variables, first, _, _, _ = finished
  second = toy.run(executor, variables, 1)
  toy.assert_equal_trees(first[:2], second[:2])


def test_finite(finished):
  for tree in finished[4][:2]:
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


@pytest.mark.slow
def test_placements_agree(finished, clients):
  """Clients at once on two devices give what one after another gives."""
  config = config_of(finished[0])
  # Networks with mined negatives amplify the last bit.
  config.fraction = 0.75
  config.optim.lr = 0.0005 if finished[0] in NETWORKS else 0.005
  ends = []
  for devices, width in ((1, 1), (2, 0)):
    config.execution.deterministic = width == 1
    config.execution.width = width
    executor, variables, _ = toy.make_executor(
      config, clients, recipe(finished[0]), devices
    )
    ends.append(toy.run(executor, variables, 1)[0])
  toy.assert_close_trees(*ends, 2e-5)


def test_checkpoint_round_trip(finished, tmp_path):
  server, states, _ = finished[4]
  saved = checkpoint.Checkpoints(tmp_path)
  saved.save(2, server, states, {'a': [1]}, 12.5)
  assert saved.latest() == 2 == saved.best()
  like = jax.tree.map(np.zeros_like, (server, states))
  back = saved.restore(2, *like)
  toy.assert_equal_trees((server, states), back[:2])
  assert back[2] == {'a': [1]}
  saved.close()
