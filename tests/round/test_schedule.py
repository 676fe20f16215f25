"""Assignment of clients to devices against its bound."""

import numpy as np
import pytest

from fedreid_jax.round.devices import lanes


def loads(chosen, cost, devices):
  return [
    sum(cost[k] for k in row if k >= 0) for row in chosen.reshape(devices, -1)
  ]


def test_the_longest_go_first_to_the_least_loaded():
  cost = dict(zip((3, 5, 6, 8, 9), (4.0, 9.0, 5.0, 5.0, 2.0), strict=True))
  chosen = lanes.assign([*cost], [*cost.values()], 2, 4)
  # 5 alone takes 9; 6, 8 and 3 take 14 where 9 joins 5.
  assert chosen.tolist() == [3, 5, -1, -1, 6, 8, 9, -1]
  assert loads(chosen, cost, 2) == [13.0, 12.0]


def test_full_devices_get_no_more():
  chosen = lanes.assign(range(4), [9.0, 1.0, 1.0, 1.0], 2, 2)
  assert chosen.tolist() == [0, 3, 1, 2]


@pytest.mark.parametrize('devices', [1, 2, 8])
@pytest.mark.parametrize('cohort', [8, 64, 256])
def test_nearly_as_short_as_possible(cohort, devices):
  rng = np.random.default_rng(cohort + devices)
  images = np.exp(rng.normal(np.log(100), 1, cohort))
  cost = np.ceil(images / 32)
  chosen = lanes.num_lanes(cohort, devices)
  found = lanes.assign(range(cohort), cost, devices, chosen)
  assert sorted(k for k in found if k >= 0) == list(range(cohort))
  shortest = max(cost.sum() / devices, cost.max())
  assert max(loads(found, cost, devices)) <= 4 / 3 * shortest
  order = rng.permutation(cohort)
  again = lanes.assign(order, cost[order], devices, chosen)
  np.testing.assert_array_equal(found, again)


def test_lanes_suffice_for_equal_shares():
  for cohort in range(1, 40):
    for devices in range(1, 9):
      assert lanes.num_lanes(cohort, devices) * devices >= cohort
