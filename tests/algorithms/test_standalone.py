import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.round import compose
from fedreid_jax.training import named_models

KERNEL = 'params/backbone/conv1/kernel'


@pytest.fixture(scope='module')
def runs(clients):
  """Two clients beside each other, then the second alone."""
  config, ends = toy.toy_config(), []
  for those in (clients[1:3], clients[2:3]):
    made = compose.load(('standalone',), {}, algorithms)
    executor, variables, _ = toy.make_rounds(config, those, made)
    _, start = executor.init(variables)
    ends.append((start.stacked(), *toy.run(executor, variables, 2)))
  return ends


@pytest.mark.slow
def test_a_client_learns_what_it_learns_alone(runs):
  (_, _, both, _), (_, _, alone, _) = runs
  assert KERNEL in both.personal
  for name, leaf in alone.personal.items():
    np.testing.assert_array_equal(both.personal[name][1], leaf[0])
    if 'mean' in name or name == KERNEL:
      assert (both.personal[name][0] != leaf[0]).any()


@pytest.mark.slow
def test_every_round_goes_on_from_the_clients_own_model(runs):
  start, server, end, logs = runs[0]
  assert (
    (start.personal[KERNEL] != end.personal[KERNEL])
    .any(axis=(1, 2, 3, 4))
    .all()
  )
  assert logs[1]['metrics']['loss'] < logs[0]['metrics']['loss']
  assert server.shared == {}


@pytest.mark.slow
def test_nothing_travels(runs):
  for log in runs[0][3]:
    assert log['up'] == log['down'] == {}


@pytest.mark.slow
def test_models_are_the_clients(runs):
  _, server, end, _ = runs[0]
  personal = {k: {n: x[k] for n, x in end.personal.items()} for k in range(2)}
  models = named_models.of(
    server.shared, personal, server.groups, ['birch', 'cedar']
  )
  assert list(models) == ['client:birch', 'client:cedar']
  for k, own in enumerate(models.values()):
    np.testing.assert_array_equal(own[KERNEL], end.personal[KERNEL][k])


@pytest.mark.parametrize(
  'names, refused',
  [
    (('standalone', 'cdw'), "'standalone' cannot be composed with 'cdw'"),
    (('standalone', 'fedprox'), 'cannot be composed with .fedprox'),
    (('standalone', 'noise'), 'cannot be composed with .noise'),
    (('standalone', 'client_clustering'), 'composed with .client_clustering'),
    (('fedpav', 'uniform', 'scaffold'), "'scaffold' cannot .* 'uniform'"),
    (('standalone', 'local_models', 'snr', 'local_expert'), ''),
  ],
)
def test_components_without_effect_are_refused(names, refused):
  made = compose.load(names, {}, algorithms)
  if not refused:
    return compose.check(made)
  with pytest.raises(errors.ConfigError, match=refused):
    compose.check(made)
