"""Rounds in waves against rounds at once."""

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import compose, lanes, types, waves

METHODS = ('fedpav', 'scaffold'), ('fedpav', 'dfh', 'cdw')


def run(clients, names, devices=1, budget=0.0):
  config = toy.toy_config()
  config.fraction, config.execution.reduction = 0.75, 'stream'
  config.execution.image_budget_mb = budget
  executor, variables, _ = toy.make_executor(
    config, clients, compose.load(names, {}, algorithms), devices
  )
  server, store = executor.init(variables)
  server, _ = executor.prepare(server, store)
  logs = []
  for number in range(2):
    server, log = executor.round(server, store, number)
    logs.append(log)
  drawn = executor._tasks.sample(0)
  count = len(executor._tasks.lanes.waves(drawn))
  return jax.device_get(server), store.stacked(), logs, count


@pytest.mark.exact
@pytest.mark.parametrize('devices', [1, 2])
@pytest.mark.parametrize('names', METHODS, ids=str)
def test_waves_change_no_bit(clients, names, devices):
  whole, states, logs, one = run(clients, names)
  parts, others, again, several = run(clients, names, devices, 700 / 2**20)
  assert one == 1 and several == (3 if devices == 1 else 2)
  if names[1] != 'scaffold':  # its controls are sums in another order
    toy.assert_equal_trees(whole, parts)
    toy.assert_equal_trees(states, others)
  for log, other in zip(logs, again, strict=True):
    assert log['up'] == other['up'] and log['images'] == other['images']
    for name in ('clients', 'valid', 'weights', 'groups'):
      np.testing.assert_array_equal(log[name], other[name])
    # Images in parts add the metrics of their steps in another order.
    for name, found in log['per_client'].items():
      np.testing.assert_allclose(found, other['per_client'][name], rtol=1e-6)


@pytest.mark.slow
def test_waves_train_like_a_whole_round(clients):
  names = METHODS[0]
  whole, states, logs, _ = run(clients, names)
  parts, others, again, several = run(clients, names, budget=700 / 2**20)
  assert several == 3
  toy.assert_close_trees(whole, parts, 1e-5)
  toy.assert_close_trees(states, others, 1e-5)
  assert logs[0]['clients'].tolist() == again[0]['clients'].tolist()


class Placed:
  """A placement of which only the number of devices counts."""

  num_devices = 2


def test_every_client_has_one_lane_of_one_wave():
  made = lanes.Lanes(Placed(), 9, False, lambda k: 1 + k % 3, 2)
  found = made.waves([7, 3, 4, 0, 11, 2, 5])
  assert made.per_device == 2 and all(len(wave) == 4 for wave in found)
  everyone = np.concatenate(found)
  assert sorted(everyone[everyone >= 0]) == [0, 2, 3, 4, 5, 7, 11]
  # Over the waves, the clients of a device are in canonical order.
  for device in range(2):
    row = np.concatenate([w.reshape(2, 2)[device] for w in found])
    assert (np.diff(row[row >= 0]) > 0).all()
  (empty,) = made.waves([])
  assert (empty == -1).all()


def test_two_waves_fit_in_the_budget():
  assert lanes.most(1000, 100) == 5
  assert lanes.most(10, 100) == 1
  assert lanes.most(0, 100) > 10**6


def test_positions_of_empty_lanes_replace_none():
  def tasks(index, drawn):
    fields = dict.fromkeys(types.ClientTask.__dataclass_fields__)
    made = types.ClientTask(**fields)
    return made.replace(index=np.array(index), drawn=np.array(drawn))

  parts = [tasks([4, -1], [2, 0]), tasks([9, 1], [1, 0])]
  found = waves.ranks(np.array([1, 4, 9, -1]), parts)
  assert found.tolist() == [0, 2, 1, 0]
