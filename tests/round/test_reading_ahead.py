"""Images of the next round, read while a round is computed."""

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
from fedreid_jax.round import compose
from fedreid_jax.round.devices import image_store
from fedreid_jax.round.devices.reading_ahead import ReadingAhead

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
  config = toy.toy_config()
  config.rounds, config.fraction = 3, 0.5
  config.execution.image_budget_mb = 700 / 2**20
  made = compose.load(('fedpav',), {}, algorithms)
  # Uploads that are gathered are of one wave.
  given = config, clients, (*made, handmade.READER)
  readers, segment = [], image_store.ImageStore.segment

  def watched(store, *args):
    ahead = threading.current_thread() is not threading.main_thread()
    readers.append((number, ahead))
    return segment(store, *args)

  monkeypatch.setattr(image_store.ImageStore, 'segment', watched)
  executor, variables, _ = toy.make_executor(*given)
  server, store = executor.init(variables)
  for number in range(3):
    server, _ = executor.round(server, store, number)
    futures.wait([x.first for x in [executor._segments._ahead._ahead] if x])
  each = sum(found == (0, False) for found in readers)
  assert each > 1
  for number in range(3):
    rest = each if number == 0 else each - 1
    assert readers.count((number, False)) == rest
    assert readers.count((number, True)) == (number < 2)

  # Without reading ahead the models are the same.
  config.rounds = 1
  executor, variables, _ = toy.make_executor(*given)
  other, store = executor.init(variables)
  for number in range(3):
    other, _ = executor.round(other, store, number)
  toy.assert_equal_trees(jax.device_get(server), jax.device_get(other))
