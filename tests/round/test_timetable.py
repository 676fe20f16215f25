"""Timetables: who trains in which round, against a slow simulation."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.round import cohort, timetable

UIDS = tuple(range(100, 120))


def always(draw, seconds):
  del draw, seconds
  return np.ones(len(UIDS), bool)


def linear(client):
  """Client k needs k + 1 seconds."""
  return client + 1.0


def make(available=always, seconds=linear, seed=3, **rules):
  return timetable.Timetable(
    timetable.Rules(**rules), seed, UIDS, available, seconds
  )


def test_without_limits_the_cohorts_are_those_of_sampling():
  table = make(size=6)
  for number in range(4):
    found = table.round(number)
    expected = cohort.sample_cohort(3, number, len(UIDS), 0.3)
    np.testing.assert_array_equal(found.clients, expected)
    assert not found.late.size and not found.staleness.any()
    # A round lasts as long as its slowest client.
    assert found.end - found.start == max(expected) + 1
  assert table.round(3).start == table.round(2).end


def test_of_more_clients_the_first_ones_are_used():
  found = make(size=6, over_selection=0.5).round(0)
  invited = cohort.sample_cohort(3, 0, len(UIDS), 9 / 20)
  fastest = sorted(invited)[:6]
  assert sorted(found.clients) == fastest
  # They keep the order of sampling.
  assert list(found.clients) == [k for k in invited if k in fastest]
  assert {*found.late} == {*invited} - {*fastest}
  assert found.end == fastest[-1] + 1


def test_after_the_deadline_nobody_is_used():
  found = make(size=10, deadline_s=8.0).round(0)
  invited = cohort.sample_cohort(3, 0, len(UIDS), 0.5)
  assert {*found.clients} == {k for k in invited if k + 1 <= 8}
  assert {*found.late} == {k for k in invited if k + 1 > 8}
  assert 0 < len(found.clients) < 10 and found.end == 8.0


def test_equal_times_are_ordered_by_the_uid():
  found = make(seconds=lambda _: 1.0, size=2, over_selection=9.0).round(0)
  assert sorted(found.clients) == [0, 1]


def test_only_available_clients_are_invited():
  def even(draw, seconds):
    del draw, seconds
    return np.arange(len(UIDS)) % 2 == 0

  found = make(even, size=12).round(0)
  assert sorted(found.clients) == list(range(0, 20, 2))


def test_a_round_without_clients_lasts_a_while():
  def late(draw, seconds):
    del draw
    return np.full(len(UIDS), seconds > 100)

  table = make(late, size=4)
  assert [len(table.round(i).clients) for i in range(3)] == [0, 0, 4]
  assert table.round(2).start == 2 * timetable.WAIT_S


def test_rounds_do_not_depend_on_the_order_of_questions():
  first, second = (
    make(size=5, in_flight=8, max_staleness=9),
    make(size=5, in_flight=8, max_staleness=9),
  )
  for number in range(6):
    first.round(number)
  for field in range(5):
    np.testing.assert_array_equal(first.round(5)[field], second.round(5)[field])


def test_staleness_counts_the_updates_since_the_start():
  """Replays the updates from the arrivals alone."""
  table = make(size=3, in_flight=8, max_staleness=2)
  rounds = [table.round(i) for i in range(30)]
  assert {len(r.clients) for r in rounds} == {3}
  assert max(r.staleness.max() for r in rounds) == 2
  assert any(r.late.size for r in rounds)
  for number, found in enumerate(rounds):
    assert len({*found.clients.tolist()}) == 3
    for client, stale in zip(found.clients, found.staleness, strict=True):
      # It started `stale` updates ago: after that update's start, and early
      # enough to arrive in this one.
      began = rounds[number - stale]
      assert found.start - began.end <= client + 1 <= found.end - began.start


def test_a_fast_server_has_no_stale_clients():
  """One client at a time starts from the model of the last update."""
  table = make(size=1, in_flight=1, max_staleness=0)
  for number in range(10):
    found = table.round(number)
    assert list(found.staleness) == [0]
    assert found.end - found.start == found.clients[0] + 1


@pytest.mark.slow
def test_without_anyone_for_months_there_is_an_error():
  table = make(
    lambda *_: np.zeros(len(UIDS), bool), size=1, in_flight=1, max_staleness=0
  )
  with pytest.raises(errors.ConfigError, match='no client is available'):
    table.round(0)


def test_an_update_that_fails_is_computed_again_from_the_same_place():
  calls = []

  def once(draw, seconds):
    calls.append((draw, seconds))
    if len(calls) == 3:
      raise errors.ConfigError('the file is gone', 'availability.file', 'x')
    return always(draw, seconds)

  rules = {'size': 5, 'in_flight': 8, 'max_staleness': 9}
  table = make(once, **rules)
  with pytest.raises(errors.ConfigError, match='gone'):
    table.round(0)
  again, expected = table.round(2), make(**rules).round(2)
  np.testing.assert_array_equal(again.clients, expected.clients)
  assert again.end == expected.end


def test_other_clients_of_a_trace_do_not_change_its_period(tmp_path):
  path = tmp_path / 'trace.csv'
  path.write_text('client,from_s,until_s\na,0,10\nx,0,100\n')
  available = timetable.listed(str(path), ('a',))
  assert available(0, 5.0) and available(0, 105.0)
  assert not available(0, 15.0)


def test_daily_availability_follows_its_wave():
  uids = range(4000)
  available = timetable.daily(7, uids, 0.5, 0.5)
  phases = np.asarray(
    [timetable.prng.host(7, 17, 1, uid).random() for uid in uids]
  )
  quarter = timetable.DAY_S / 4
  now = available(0, quarter)
  near = np.abs(phases - 0.0) < 0.05  # at the top of the wave
  far = np.abs(phases - 0.5) < 0.05
  assert now[near].mean() > 0.95 and now[far].mean() < 0.05
  assert abs(now.mean() - 0.5) < 0.03
  assert (available(1, quarter) != now).any()
  assert timetable.daily(7, uids, 1.0, 0.0)(0, 5.0).all()


def test_a_file_of_intervals(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_text('client,from_s,until_s\na,0,10\nb,5,20\na,15,20\nother,0,9\n')
  available = timetable.listed(str(path), ('a', 'b', 'c'))
  for seconds, expected in (
    (0, [1, 0, 0]),
    (9.9, [1, 1, 0]),
    (10, [0, 1, 0]),
    (16, [1, 1, 0]),
    (20, [1, 0, 0]),  # it repeats
  ):
    np.testing.assert_array_equal(available(0, seconds), expected)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('client,from_s\na,0\n', 'lacks columns'),
    ('client,from_s,until_s\na,5,5\n', 'line 2: 5 to 5 is no interval'),
    ('client,from_s,until_s\nz,0,5\n', 'names no client'),
    ('client,from_s,until_s\na,0\n', 'a.csv: line 2 has too few columns'),
    (
      'client,from_s,until_s\na,x,5\n',
      "could not convert string to float: 'x'",
    ),
  ],
)
def test_a_wrong_file_is_refused(tmp_path, text, message):
  path = tmp_path / 'a.csv'
  path.write_text(text)
  with pytest.raises(errors.ConfigError, match=message):
    timetable.listed(str(path), ('a', 'b'))


def test_devices_take_time_for_steps_and_bytes():
  devices = timetable.Devices(2.0, 0.0, 100.0, 0.0)
  assert devices.seconds(0, 5, steps=3, sent=50) == 6.5
  free = timetable.Devices(2.0, 0.0, 0.0, 0.0)
  assert free.seconds(0, 5, steps=3, sent=50) == 6.0
  spread = timetable.Devices(1.0, 0.7, 1.0, 1.3)
  steps = [np.log(spread.seconds(0, uid, 1, 0)) for uid in range(3000)]
  assert abs(np.std(steps) - 0.7) < 0.03 and abs(np.mean(steps)) < 0.05
  sent = [np.log(spread.seconds(0, uid, 0, 1)) for uid in range(3000)]
  assert abs(np.std(sent) - 1.3) < 0.06
  assert abs(np.corrcoef(steps, sent)[0, 1]) < 0.06
  assert spread.seconds(0, 1, 1, 1) == spread.seconds(0, 1, 1, 1)
  assert spread.seconds(0, 1, 1, 1) != spread.seconds(1, 1, 1, 1)
