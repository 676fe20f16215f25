"""FedBuff against its equation, with single rounds of FedPav as the oracle."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import compress, fedbuff, fedpav, scaffold
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import types
from fedreid_jax.round import compose, timetable
from fedreid_jax.round.cohorts import Cohort

# (clients, staleness) of each update of the server.
UPDATES = (
  ([0, 2], [0, 0]),
  ([1, 3], [1, 0]),
  ([0, 1], [0, 2]),
  ([3, 2], [1, 1]),
)


def with_timetable(executor, updates):
  """Gives rounds a timetable that is written by hand."""

  def draw(number):
    clients, staleness = (np.asarray(x, np.int32) for x in updates[number])
    none = np.zeros(0, np.int32)
    timed = timetable.Round(clients, staleness, none, number, number + 1.0)
    return Cohort(clients, staleness, timed)

  executor.cohorts.draw = draw


def test_weights_and_starts_by_staleness():
  made = fedbuff.make(fedbuff.Options(exponent=1.5, max_staleness=2))
  weights = [made.aggregation.weight({'staleness': n}, None) for n in range(3)]
  np.testing.assert_allclose(weights, [1, 2**-1.5, 3**-1.5], rtol=1e-6)
  earlier = {'params/a': jnp.asarray([[10.0], [20.0]])}  # newest first
  for staleness, value in ((0, 30.0), (1, 10.0), (2, 20.0)):
    sent = types.Broadcast(
      {'params/a': jnp.asarray([30.0])},
      {'fedbuff': {'earlier': earlier}},
      jnp.int32(5),
      jnp.int32(staleness),
    )
    found = made.transport.down(sent, None)
    assert found.shared['params/a'] == value
    assert found.messages['fedbuff']['present'] == sent.shared


@pytest.mark.slow
def test_updates_are_those_of_the_paper(config, clients):
  config = toy.replaced(config, {'fraction': 0.5})
  options = fedbuff.Options(lr=0.7, exponent=1.5, max_staleness=2)
  executor, variables, _ = toy.make_rounds(
    config, clients, (fedpav.make(), fedbuff.make(options))
  )
  with_timetable(executor, UPDATES)
  plain, _, _ = toy.make_rounds(config, clients, (fedpav.make(),))
  server, store = executor.init(variables)
  models = [jax.device_get(server.shared)]
  for number, (members, staleness) in enumerate(UPDATES):
    expected = dict(models[-1])
    for client, stale in zip(members, staleness, strict=True):
      began = models[number - stale]
      alone, _ = plain.init(variables)
      alone = dataclasses.replace(alone, shared=jax.device_put(began))
      with_timetable(plain, {number: ([client], [0])})
      trained, _ = plain.round(alone, store.copy(), number)
      weight = 0.7 * (1 + stale) ** -1.5 / 2
      for name, x in jax.device_get(trained.shared).items():
        before = began if name.startswith('params/') else models[-1]
        expected[name] = expected[name] + weight * (x - before[name])
    server, log = executor.round(server, store, number)
    models.append(jax.device_get(server.shared))
    assert log['timetable'].end == number + 1
    for name, x in models[-1].items():
      np.testing.assert_allclose(x, expected[name], rtol=0, atol=2e-6)
      assert number > 2 or np.abs(x - models[-2][name]).max() > 0
    # Kept models are a simulation's; a client receives one.
    assert 'fedbuff' not in log['down']


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ('availability.in_flight=0', 'no client is in flight with fedbuff'),
    ("components=('fedpav',)", '3 clients in flight with fedpav'),
    ('availability.deadline_s=5.0', 'no deadline'),
  ],
)
def test_wrong_combinations_are_refused(fields, message):
  with pytest.raises(errors.ConfigError, match=message):
    config = recipes.recipe('fedbuff', f'smoke,{fields}')
    validation.validate(config)


@pytest.mark.slow
def test_a_variance_stays_positive(config, clients):
  """Stale clients saw it fall from 1 as the present model has since."""
  config = toy.replaced(config, {'fraction': 0.5, 'local.steps': 20})
  options = fedbuff.Options(lr=1.5)
  executor, variables, _ = toy.make_rounds(
    config, clients, (fedpav.make(), fedbuff.make(options))
  )
  updates = ([0, 1], [0, 0]), ([2, 3], [1, 1]), ([0, 1], [0, 1])
  with_timetable(executor, updates)
  server, store = executor.init(variables)
  for number in range(len(updates)):
    server, log = executor.round(server, store, number)
    assert log['valid'].all()
    for name, x in jax.device_get(server.shared).items():
      assert not name.endswith('/var') or x.min() > 0
  assert variables['batch_stats/neck/bn/var'].min() == 1
  assert server.shared['batch_stats/neck/bn/var'].min() < 0.3


@pytest.mark.slow
def test_uploads_are_compressed_before_they_are_moved(config, clients):
  """With all values of topk nothing is lost, whatever the received model."""
  config = toy.replaced(config, {'fraction': 0.5})
  whole = compress.make(compress.Options('topk', ratio=1.0))
  found = []
  for more in ((), (whole,)):
    components = fedpav.make(), *more, fedbuff.make()
    executor, variables, _ = toy.make_rounds(config, clients, components)
    with_timetable(executor, UPDATES)
    server, store = executor.init(variables)
    for number in range(len(UPDATES)):
      server, _ = executor.round(server, store, number)
    found.append(jax.device_get(server.shared))
  for name, x in found[0].items():
    np.testing.assert_allclose(found[1][name], x, rtol=0, atol=2e-6)
  with pytest.raises(errors.ConfigError, match='put .fedbuff. after it'):
    compose.check((fedpav.make(), fedbuff.make(), whole))


def test_scaffold_needs_rounds():
  components = fedpav.make(), fedbuff.make(), scaffold.make()
  with pytest.raises(errors.ConfigError, match='scaffold'):
    compose.check(components)
