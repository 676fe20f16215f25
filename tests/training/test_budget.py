"""Runs that exceed the memory are refused before any allocation."""

import resource

import jax
import jax.numpy as jnp
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.round import compose
from fedreid_jax.training import budget


def forward(variables, images):
  """Convolves `[B, 4, 4, 1]` to 2 channels, then maps to 3 numbers."""
  convolve = jax.jit(lambda x, w: jax.lax.conv(x, w, (1, 1), 'SAME'))
  maps = convolve(images.transpose(0, 3, 1, 2), variables['kernel'])
  return jnp.tanh(maps).reshape(len(images), -1) @ variables['dense']


EACH = budget.cost(
  forward,
  {'kernel': jnp.zeros((2, 1, 3, 3)), 'dense': jnp.zeros((32, 3))},
  (4, 4, 1),
)


def test_cost_of_an_image():
  assert EACH == budget.Cost(image=64, kept=128 + 12, largest=128)


def check(config, steps=3, memory=10**6, **more):
  """Asks whether a plan of four clients fits."""
  patch = pytest.MonkeyPatch()
  with patch.context() as at:
    at.setattr(budget, 'host_memory', lambda: memory)
    at.setattr(budget, 'device_memory', lambda: memory)
    shape = steps, config.local.batch
    budget.check(config, shape, 4, EACH, more.get('devices', 1))


@pytest.mark.parametrize(
  'value, fits',
  [(4901, True), (4902, False), (10**25, False)],  # 204 bytes an image
)
def test_batch(config, value, fits):
  config = toy.replaced(config, {'local.steps': 1, 'local.batch': value})
  if fits:
    check(config, steps=1)
    return
  with pytest.raises(errors.ResourceError) as info:
    check(config, steps=1)
  assert info.value.where == 'local.batch' and str(value) in info.value.what


def test_clients_at_a_time_count(config):
  config = toy.replaced(config, {'local.batch': 2000})
  check(config)
  config = toy.replaced(config, {'execution.width': 0})
  with pytest.raises(errors.ResourceError, match=r'local\.batch'):
    check(config)  # four clients at once
  check(config, devices=2)  # two on each device: 0.8 MB


@pytest.mark.parametrize('fixed', [True, False])
def test_a_long_plan_names_its_field(config, fixed):
  config = toy.replaced(
    config,
    {
      'local.batch': 100,
      'local.steps': 501 if fixed else 0,
      'local.epochs': 1 if fixed else 501,
    },
  )
  check(config, steps=500)  # 4 clients, 500 x 100 places of 5 bytes
  with pytest.raises(errors.ResourceError) as info:
    check(config, steps=501)
  assert info.value.where == ('local.steps' if fixed else 'local.epochs')
  assert info.value.what.startswith('501 needs')


def test_evaluation_and_data_pass(config):
  config = toy.replaced(config, {'evaluation.batch': 5209})
  with pytest.raises(errors.ResourceError, match=r'evaluation\.batch'):
    check(config)
  with pytest.raises(errors.ResourceError, match=r'local\.data_pass_batch'):
    budget.check_data_pass(10**15, EACH)


def test_a_run_is_refused_before_it_compiles(config, clients):
  config = toy.replaced(config, {'local.steps': 10**12})
  with pytest.raises(errors.ResourceError, match=r'local\.steps'):
    toy.make_rounds(config, clients, compose.load(('fedpav',), {}, algorithms))


def test_a_limit_on_the_process_counts(monkeypatch):
  whole = budget.host_memory()
  assert 0 < whole
  monkeypatch.setattr(resource, 'getrlimit', lambda _: (12345, 12345))
  assert budget.host_memory() == 12345
