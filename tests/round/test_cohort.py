"""Assignment of clients to devices against its bound."""

import numpy as np
import pytest

from fedreid_jax.core import prng, types
from fedreid_jax.round import cohort


def test_draw_is_a_function_of_seed_and_round():
  a = cohort.sample_cohort(1, 5, 10, 0.4)
  np.testing.assert_array_equal(a, cohort.sample_cohort(1, 5, 10, 0.4))
  assert len(a) == 4 == len(set(a))
  others = [cohort.sample_cohort(1, r, 10, 0.4).tolist() for r in range(8)]
  assert len({tuple(o) for o in others}) > 4


@pytest.mark.parametrize(
  'num, fraction, expected',
  [(9, 0.5, 5), (10, 0.3, 3), (4, 1.0, 4), (7, 1e-6, 1)],
)
def test_draw_rounds_up_and_is_never_empty(num, fraction, expected):
  assert len(cohort.sample_cohort(0, 0, num, fraction)) == expected


def test_full_participation_ignores_the_seed():
  for seed in range(3):
    assert sorted(cohort.sample_cohort(seed, 2, 5, 1.0)) == list(range(5))


def test_place_balances_images_and_tables_do_not_overlap(clients):
  homes = cohort.place(clients, 2)
  loads = np.zeros(2, int)
  for k, client in enumerate(clients):
    assert homes.first_row[k] + client.num_images <= homes.rows
    loads[homes.device[k]] += client.num_images
  assert sorted(loads) == [19, 20]
  assert homes.rows == 20


def test_seat_keeps_canonical_order_and_marks_empty_places(clients):
  homes = cohort.place(clients, 2)
  slots = cohort.num_lanes(homes, 3)
  seats = cohort.assign_lanes(homes, np.array([3, 0, 1]), slots)
  assert sorted(seats[seats >= 0]) == [0, 1, 3]
  for half in seats.reshape(2, slots):
    real = half[half >= 0]
    assert (np.diff(real) > 0).all()


def test_lanes_are_those_of_the_fullest_device():
  homes = cohort.Placement(np.array([0, 0, 0, 1]), np.zeros(4, int), 9, 3)
  assert cohort.num_lanes(homes, 4) == 3
  assert cohort.num_lanes(homes, 2) == 2


def test_rows_of_a_task_are_in_the_part_of_the_table_of_its_client(clients):
  homes = cohort.Placement(np.zeros(4, int), np.array([0, 9, 23, 28]), 39, 1)
  plan = types.Plan(np.array([[0, 2], [4, 1]]), np.ones((2, 2), bool))
  tasks = cohort.make_tasks(
    clients,
    homes,
    np.array([2, -1, 1]),
    lambda round_, k: plan,
    (3, 2),
    lambda k: plan,
    (2, 2),
    np.zeros(4, int),
    np.array([1, 2]),
    np.array([5, 3]),
    0,
    7,
  )
  assert tasks.drawn.tolist() == [1, 0, 0]
  assert tasks.staleness.tolist() == [3, 0, 5]
  assert (tasks.seed == prng.data(7)).all() and tasks.seed.shape == (3, 2)
  np.testing.assert_array_equal(tasks.rows[0], [[23, 25], [27, 24], [0, 0]])
  np.testing.assert_array_equal(tasks.pass_rows[2], [[9, 11], [13, 10]])
  assert tasks.num_steps.tolist() == [2, 0, 2]
  assert not tasks.valid[1].any() and not tasks.valid[0, 2].any()
  assert tasks.num_examples.tolist() == [5, 0, 14]


def test_uid_depends_on_the_name_only():
  assert prng.client_uid('Market') == 689728734  # of old checkpoints, too
  assert prng.client_uid('Market') == prng.client_uid('Market')
  assert prng.client_uid('Market') != prng.client_uid('Duke')
  assert 0 <= prng.client_uid('Market') < 2**31


def test_host_generator_differs_by_each_argument():
  base = prng.host(0, prng.Stream.SAMPLER, 1, 2).integers(1 << 30)
  others = [
    prng.host(1, prng.Stream.SAMPLER, 1, 2),
    prng.host(0, prng.Stream.COHORT, 1, 2),
    prng.host(0, prng.Stream.SAMPLER, 2, 2),
    prng.host(0, prng.Stream.SAMPLER, 1, 3),
  ]
  assert base not in [o.integers(1 << 30) for o in others]


def test_streams_are_unique():
  values = [int(s) for s in prng.Stream]
  assert len(values) == len(set(values))


def test_poisson_cohorts_include_each_client_independently():
  rounds, num, rate = 4000, 6, 0.3
  found = np.zeros((rounds, num))
  for r in range(rounds):
    found[r, cohort.sample_poisson(0, r, num, rate, num)] = 1
  error = np.sqrt(rate * (1 - rate) / rounds)
  assert np.abs(found.mean(0) - rate).max() < 4 * error
  correlation = np.corrcoef(found.T) - np.eye(num)
  assert np.abs(correlation).max() < 4 / np.sqrt(rounds)
  sizes = {int(size) for size in found.sum(1)}
  assert {0, 1, 2, 3} <= sizes
  again = cohort.sample_poisson(0, 5, num, rate, num)
  np.testing.assert_array_equal(np.flatnonzero(found[5]), np.sort(again))


def test_above_the_number_of_places_a_random_subset_is_left():
  counts = np.zeros(5)
  for r in range(3000):
    members = cohort.sample_poisson(1, r, 5, 0.9, 2)
    assert len({*members}) == len(members) <= 2
    counts[members] += 1
  assert np.abs(counts / 3000 - 0.4).max() < 4 * np.sqrt(0.4 * 0.6 / 3000)


def loads(chosen, cost, devices):
  return [
    sum(cost[k] for k in row if k >= 0) for row in chosen.reshape(devices, -1)
  ]


def test_the_longest_go_first_to_the_least_loaded():
  cost = dict(zip((3, 5, 6, 8, 9), (4.0, 9.0, 5.0, 5.0, 2.0), strict=True))
  chosen = cohort.assign_evenly([*cost], [*cost.values()], 2, 4)
  # 5 alone takes 9; 6, 8 and 3 take 14 where 9 joins 5.
  assert chosen.tolist() == [3, 5, -1, -1, 6, 8, 9, -1]
  assert loads(chosen, cost, 2) == [13.0, 12.0]


def test_full_devices_get_no_more():
  chosen = cohort.assign_evenly(range(4), [9.0, 1.0, 1.0, 1.0], 2, 2)
  assert chosen.tolist() == [0, 3, 1, 2]


@pytest.mark.parametrize('devices', [1, 2, 8])
@pytest.mark.parametrize('places', [8, 64, 256])
def test_nearly_as_short_as_possible(places, devices):
  rng = np.random.default_rng(places + devices)
  images = np.exp(rng.normal(np.log(100), 1, places))
  cost = np.ceil(images / 32)
  chosen = cohort.even_lanes(places, devices)
  found = cohort.assign_evenly(range(places), cost, devices, chosen)
  assert sorted(k for k in found if k >= 0) == list(range(places))
  shortest = max(cost.sum() / devices, cost.max())
  assert max(loads(found, cost, devices)) <= 4 / 3 * shortest
  order = rng.permutation(places)
  again = cohort.assign_evenly(order, cost[order], devices, chosen)
  np.testing.assert_array_equal(found, again)


def test_lanes_suffice_for_equal_shares():
  for places in range(1, 40):
    for devices in range(1, 9):
      assert cohort.even_lanes(places, devices) * devices >= places
