import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedreid_jax.core import types
from fedreid_jax.method import aggregation

EPS = np.finfo(np.float32).eps


def uploads(sizes, values):
  num = len(sizes)
  return types.Upload(
    np.arange(num),
    {'params/w': np.asarray(values, np.float32)},
    np.asarray(sizes, np.float32),
    np.ones(num, int),
    np.ones(num, bool),
    {},
  )


@jax.jit
def reduced(sent, members):
  here = aggregation.valid_uploads(sent)
  members = here[None] if members is None else members & here[None]
  weights = aggregation.normalise(sent.num_examples, members)
  shape = (len(members), *sent.shared['params/w'].shape[1:])
  server = {'params/w': jnp.full(shape, 7.0)}
  out = aggregation.reduce(server, sent.shared, {'params/w': weights})
  return out['params/w'], weights


def mean(sizes, values, members=None):
  return jax.device_get(reduced(uploads(sizes, values), members))


# Every number of clients compiles anew, so that a few stand for all.
sizes_of = st.sampled_from((1, 3, 16)).flatmap(
  lambda num: st.lists(
    st.integers(0, 50_000), min_size=num, max_size=num
  ).filter(any)
)
PROPERTY = settings(derandomize=True, max_examples=30, deadline=None)


def draw_values(sizes, seed):
  return np.random.default_rng(seed).normal(size=(len(sizes), 5)).astype('f4')


def test_worked_numbers():
  out, weights = mean([1, 3], [[4.0, 0, 0], [8.0, 4.0, 0]])
  np.testing.assert_allclose(weights, [[0.25, 0.75]])
  np.testing.assert_allclose(out, [[7.0, 3.0, 0.0]])


@PROPERTY
@given(sizes_of, st.integers(0, 99))
def test_weights_sum_to_one_and_mean_is_convex(sizes, seed):
  values = draw_values(sizes, seed)
  out, weights = mean(sizes, values)
  assert (weights >= 0).all()
  assert abs(weights.sum() - 1) <= 1e-6
  used = values[np.asarray(sizes) > 0]
  slack = 4 * EPS * np.abs(values).max()
  assert (out <= used.max(axis=0) + slack).all()
  assert (out >= used.min(axis=0) - slack).all()


@PROPERTY
@given(sizes_of, st.integers(0, 99))
def test_equal_clients_give_back_the_client(sizes, seed):
  one = draw_values([1], seed)
  out, _ = mean(sizes, np.repeat(one, len(sizes), axis=0))
  np.testing.assert_allclose(out, one, rtol=16 * EPS)


@PROPERTY
@given(sizes_of, st.integers(-3, 3), st.integers(0, 99))
def test_scaling_sizes_or_values_by_a_power_of_two(sizes, power, seed):
  values = draw_values(sizes, seed)
  out, _ = mean(sizes, values)
  scaled, _ = mean(np.asarray(sizes) * 2.0**power, values)
  np.testing.assert_array_equal(out, scaled)
  doubled, _ = mean(sizes, values * np.float32(2.0**power))
  np.testing.assert_array_equal(out * np.float32(2.0**power), doubled)


@PROPERTY
@given(sizes_of, st.integers(0, 99))
def test_sums_are_close_to_float64(sizes, seed):
  values = draw_values(sizes, seed)
  exact = np.average(values.astype('f8'), axis=0, weights=sizes)
  out, _ = mean(sizes, values)
  np.testing.assert_allclose(out[0], exact, atol=1e-5)


def test_one_client_is_copied_bit_for_bit():
  value = draw_values([1], 3) * 1e30
  out, _ = mean([12], value)
  np.testing.assert_array_equal(out, value)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_a_client_that_is_not_finite_does_not_count(bad):
  values = np.array([[1.0, 2], [bad, 0], [3, 4]], 'f4')
  out, weights = mean([1, 5, 1], values)
  np.testing.assert_allclose(out, [[2.0, 3.0]])
  np.testing.assert_allclose(weights, [[0.5, 0, 0.5]])


def test_empty_group_keeps_its_model_and_groups_do_not_mix():
  members = np.array([[True, True, False], [False] * 3, [False, False, True]])
  out, _ = mean([1, 1, 9], [[2.0], [4.0], [5.0]], members)
  np.testing.assert_allclose(out, [[3.0], [7.0], [5.0]])


def test_rest_of_a_short_row_is_the_servers_model():
  server = {'params/w': jnp.array([[10.0]])}
  values = {'params/w': jnp.array([[2.0], [4.0]])}
  weights = {'params/w': jnp.array([[0.25, 0.25]])}
  out = aggregation.reduce(server, values, weights)
  # 10 - (0.25 * 8 + 0.25 * 6), the update in difference form
  np.testing.assert_allclose(out['params/w'], [[6.5]])


def test_normalise_falls_back_when_weights_are_useless():
  members = jnp.ones((1, 2), bool)
  sizes = jnp.array([[0.25, 0.75]])
  for raw in ([0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]):
    rows = aggregation.normalise(jnp.array(raw), members)
    out, fell_back = aggregation.usable(rows, members, sizes)
    assert fell_back
    np.testing.assert_allclose(out, [[0.25, 0.75]])


def test_weights_of_any_sum_are_scaled_to_one():
  """P1's Algorithm 3 as printed, m_k over the sum of 1 / m_k, sums to 0.04.

  Without the scaling the rest would go to the server's own model.
  """
  m = np.array([0.1, 0.4, 0.2], np.float32)
  printed = jnp.asarray(m / (1 / m).sum())
  members = jnp.ones((1, 3), bool)
  weights = aggregation.normalise(printed, members)
  np.testing.assert_allclose(weights, [m / m.sum()], rtol=1e-6)
  server, values = {'w': jnp.full((1, 1), 9.0)}, {'w': jnp.ones((3, 1))}
  for rows, expected in ((weights, 1.0), (printed[None], 9 - 8 * 0.04)):
    out = aggregation.reduce(server, values, {'w': rows})
    np.testing.assert_allclose(out['w'], [[expected]], rtol=1e-6)
