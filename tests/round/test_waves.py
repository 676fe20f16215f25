"""Rounds in waves against rounds at once.

Images of the next round, read while a round is computed.
"""

import gc
import threading
import weakref
from concurrent import futures

import handmade
import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import types
from fedreid_jax.round import cohort, compiled, compose, segments
from fedreid_jax.round.segments import ReadingAhead

SCAFFOLD = 'fedpav', 'scaffold'
# With states of clients and of the server, weights that follow from messages,
# and a pass over the images before round 0.
EVERY = 'fedpav', 'dfh', 'cdw', 'scaffold', 'fedopt'
BUDGET = 700 / 2**20  # for the images of a part of a client


def run(clients, names, devices=1, budget=0.0, **fields):
  config = toy.toy_config()
  config = toy.replaced(config, {'model.features': (4,), 'fraction': 0.75})
  config = toy.replaced(config, fields)
  config = toy.replaced(config, {'execution.image_budget_mb': budget})
  executor, variables, _ = toy.make_rounds(
    config, clients, compose.load(names, {}, algorithms), devices
  )
  server, store = executor.init(variables)
  server, _ = executor.prepare(server, store)
  logs = []
  for number in range(2):
    server, log = executor.round(server, store, number)
    logs.append(log)
  drawn, groups = executor.cohorts.draw(0), np.zeros(len(clients), int)
  simulated = executor.simulated
  kind = len(simulated.waves(drawn, groups, 0)), simulated.resident
  return jax.device_get(server), store.stacked(), logs, kind


FIELDS = {'fraction': 1.0, 'optim.lr': 0.005}


@pytest.fixture(scope='module')
def whole(clients):
  return run(clients, EVERY, **FIELDS)


@pytest.mark.exact
@pytest.mark.parametrize(
  'devices, budget, kind',
  [
    # Clients have other places, and some of eight devices have none.
    (2, 0.0, (1, True)),
    (8, 0.0, (1, True)),
    # Several waves, and several segments in each.
    (1, BUDGET, (4, False)),
    (2, BUDGET, (2, False)),
  ],
)
def test_devices_waves_and_segments_change_no_bit(
  clients, whole, devices, budget, kind
):
  models, states, logs, one = whole
  parts, others, again, found = run(clients, EVERY, devices, budget, **FIELDS)
  assert one == (1, True) and found == kind
  toy.assert_equal_trees(models, parts)
  toy.assert_equal_trees(states, others)
  for log, other in zip(logs, again, strict=True):
    assert log['up'] == other['up'] and log['images'] == other['images']
    for name in ('clients', 'valid', 'weights', 'groups'):
      np.testing.assert_array_equal(log[name], other[name])
    # Images in parts add the metrics of their steps in another order.
    for name, found in log['per_client'].items():
      np.testing.assert_allclose(found, other['per_client'][name], rtol=1e-6)


@pytest.mark.exact
def test_waves_of_few_clients_change_no_bit():
  """Poisson sampling draws fewer clients than a round has places.

  The images stay on the devices.
  """
  many = tuple(toy.toy_client(f'c{k:02}', 4 + k % 3) for k in range(20))
  fields = {'cohort': 'poisson', 'fraction': 0.6, 'seed': 5}
  models, states, logs, one = run(many, SCAFFOLD, **fields)
  assert one == (1, True)
  drawn = {len(log['clients']) for log in logs}
  assert all(0 < number < len(many) for number in drawn) and len(drawn) == 2
  for devices, budget in ((1, 7000), (8, 1500)):
    parts, others, again, (waves, resident) = run(
      many, SCAFFOLD, devices, budget / 2**20, **fields
    )
    assert waves > 1 and resident
    toy.assert_equal_trees(models, parts)
    toy.assert_equal_trees(states, others)
    for log, other in zip(logs, again, strict=True):
      np.testing.assert_array_equal(log['valid'], other['valid'])
      np.testing.assert_array_equal(log['weights'], other['weights'])


def test_places_without_a_client_are_empty():
  def wave(*index):
    indices = np.array(index, np.int32)
    images = np.where(indices < 0, 0, indices + 10)
    return types.Upload(
      indices, {}, images, indices * 0 + 1, indices >= 0, {}
    ), (), indices >= 0  # fmt: skip

  found = compiled.join([wave(4, -1), wave(2, 7)], 6)[0]
  assert found.index.tolist() == [2, 4, 7, -1, -1, -1]
  assert found.num_examples.tolist() == [12, 14, 17, 0, 0, 0]
  found = compiled.join([wave(4, -1), wave(2, 7)], 2)[0]
  assert found.index.tolist() == [2, 4]


def placed(device):
  """A placement of which only the devices count."""
  device = np.array(device, np.int32)
  return cohort.Placement(device, device, 0, int(device.max()) + 1)


def test_every_client_has_one_lane_of_one_wave():
  home = placed([0, 1] * 6)
  made = cohort.Lanes(home, 9, False, [0, 0], lambda k: 1 + k % 3, 2)
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


@pytest.mark.parametrize('homes', [False, True])
def test_the_lanes_of_a_wave_do_not_grow_with_the_round(homes):
  home = placed([0, 1] * 6)
  made = cohort.Lanes(home, 12, homes, [0, 0], lambda k: 1, 2)
  found = made.waves(range(12))
  assert made.per_device == 2 and [len(wave) for wave in found] == [4] * 3
  assert sorted(np.concatenate(found)) == [*range(12)]
  if homes:
    assert found[0].tolist() == [0, 2, 1, 3]


def test_clients_stay_in_their_process():
  """Devices 0 and 2 are of process 5, device 1 is the only one of process 3."""
  home = placed([0, 2, 0, 0, 1, 0, 2, 1])
  steps = {0: 4, 1: 1, 2: 1, 3: 9, 4: 1, 5: 5, 6: 1, 7: 1}
  made = cohort.Lanes(home, 8, False, [5, 3, 5], steps.__getitem__, 9)
  # Six clients on two devices have ceil(1.5 * 6 / 2) lanes.
  assert made.per_device == 5
  assert made.owners([0, 4, 6]).tolist() == [5, 3, 5]
  (found,) = made.waves(range(8))
  rows = [row[row >= 0].tolist() for row in found.reshape(3, 5)]
  # 9 steps and two of 1 stand beside 5, 4 and one of 1.
  assert rows == [[1, 3, 6], [4, 7], [0, 2, 5]]


def test_every_process_has_as_many_waves():
  home = placed([0] * 6 + [1] * 2)
  made = cohort.Lanes(home, 8, False, [0, 1], lambda k: 1, 2)
  found = made.waves([7, 6, 4, 3, 2, 1, 0])
  assert [wave.tolist() for wave in found] == [
    [0, 1, 6, 7],
    [2, 3, -1, -1],
    [4, -1, -1, -1],
  ]


def test_two_waves_fit_in_the_budget():
  assert cohort.most_lanes(1000, 100) == 5
  assert cohort.most_lanes(10, 100) == 1
  assert cohort.most_lanes(0, 100) > 10**6


def test_positions_of_empty_lanes_replace_none():
  def tasks(index, drawn):
    fields = dict.fromkeys(types.ClientTask.__dataclass_fields__)
    made = types.ClientTask(**fields)
    return made.replace(index=np.array(index), drawn=np.array(drawn))

  parts = [tasks([4, -1], [2, 0]), tasks([9, 1], [1, 0])]
  found = compiled.ranks(np.array([1, 4, 9, -1]), parts)
  assert found.tolist() == [0, 2, 1, 0]


ARRAYS = np.arange(3), {'rows': np.ones((2, 2))}


def arrays(change=0.0):
  return np.arange(3), {'rows': np.full((2, 2), 1.0 + change)}


def test_the_first_is_read_in_a_thread_and_the_others_on_demand():
  readers = []

  def segments():
    for number in range(3):
      readers.append(threading.current_thread().name)
      yield number

  ahead = ReadingAhead()
  assert ahead.take(ARRAYS) is None
  ahead.start(ARRAYS, segments())
  found = ahead.take(arrays())
  assert len(readers) == 1 and readers[0].startswith('images')
  assert found is not None and list(found) == [0, 1, 2]
  assert readers[1:] == [threading.current_thread().name] * 2
  assert ahead.take(ARRAYS) is None  # it was taken
  ahead.start(ARRAYS, segments())
  ahead.drop()
  assert ahead.take(ARRAYS) is None


@pytest.mark.slow
def test_no_segment_outlives_its_use():
  class Images:
    pass

  alive = []

  def segments():
    for _ in range(4):
      images = Images()
      alive.append(weakref.ref(images))
      yield images
      del images

  ahead = ReadingAhead()
  ahead.start(ARRAYS, segments())
  for count, images in enumerate(ahead.take(ARRAYS) or (), 1):
    del images
    assert sum(one() is not None for one in alive) <= 1, count
  assert len(alive) == 4
  ahead.start(ARRAYS, segments())
  ahead.drop()
  gc.collect()
  assert alive[-1]() is None


def test_other_segments_than_those_asked_for_are_dropped():
  ahead = ReadingAhead()
  ahead.start(ARRAYS, iter([1]))
  assert ahead.take(arrays(1e-9)) is None
  ahead.start(ARRAYS, iter([1]))
  ahead.start(ARRAYS, iter([2]))
  assert [*(ahead.take(ARRAYS) or ())] == [2]
  ahead.start(ARRAYS, iter([]))  # a round without a client
  assert [*(ahead.take(ARRAYS) or (3,))] == []


def test_an_error_is_left_to_the_next_reader():
  def unreadable():
    raise OSError('gone')
    yield

  ahead = ReadingAhead()
  ahead.start(ARRAYS, unreadable())
  assert ahead.take(ARRAYS) is None


@pytest.mark.slow
def test_a_round_begins_with_a_segment_that_was_read(clients, monkeypatch):
  config = toy.replaced(
    toy.toy_config(),
    {'rounds': 3, 'fraction': 0.5, 'execution.image_budget_mb': BUDGET},
  )
  made = compose.load(('fedpav',), {}, algorithms)
  # Uploads that are gathered are of one wave.
  given = config, clients, (*made, handmade.READER)
  readers, reading, segment = [], [], segments.ImageStore.segment

  def watched(store, *args):
    ahead = threading.current_thread() is not threading.main_thread()
    readers.append((number, ahead))
    return segment(store, *args)

  class Reader(futures.ThreadPoolExecutor):
    def submit(self, *args):
      reading.append(super().submit(*args))
      return reading[-1]

  monkeypatch.setattr(segments.ImageStore, 'segment', watched)
  monkeypatch.setattr(segments.futures, 'ThreadPoolExecutor', Reader)
  executor, variables, _ = toy.make_rounds(*given)
  server, store = executor.init(variables)
  for number in range(3):
    server, _ = executor.round(server, store, number)
    futures.wait(reading)
  each = sum(found == (0, False) for found in readers)
  assert each > 1
  for number in range(3):
    rest = each if number == 0 else each - 1
    assert readers.count((number, False)) == rest
    assert readers.count((number, True)) == (number < 2)

  # Without reading ahead the models are the same.
  config = toy.replaced(config, {'rounds': 1})
  executor, variables, _ = toy.make_rounds(*given)
  other, store = executor.init(variables)
  for number in range(3):
    other, _ = executor.round(other, store, number)
  toy.assert_equal_trees(jax.device_get(server), jax.device_get(other))
