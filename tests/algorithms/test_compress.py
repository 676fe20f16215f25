"""Compressed values against buffers that are packed for real."""

import handmade
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.algorithms import compress, fedpav
from fedreid_jax.core import trees, types
from fedreid_jax.method.component import MODEL
from fedreid_jax.round import compose, round_log

KERNEL, MEAN = handmade.KERNEL, handmade.MEAN
STATE = 'compress_transport'


def toy_run(config, rounds=2, spoil=None, **options):
  """Rounds on toy clients; `spoil` changes the states before the last one."""
  made = (fedpav.make(), compress.make(compress.Options(**options)))
  executor, variables, _ = toy.make_rounds(
    config, toy.toy_clients(), made if options else made[:1]
  )
  server, states = executor.init(variables)
  logs, before = [], None
  for round_ in range(rounds):
    before = states.stacked()
    if spoil and round_ == rounds - 1:
      spoil(states)
    server, log = executor.round(server, states, round_)
    logs.append(log)
  return jax.device_get(server), states.stacked(), logs, before


@pytest.fixture(scope='module')
def plain():
  """A run without compression, and the log of its first round."""
  server, _, (log, _), _ = toy_run(toy.toy_config())
  return server.shared, log


@pytest.mark.slow
def test_all_values_are_the_plain_run(config, plain):
  found, states, logs, _ = toy_run(config, kind='topk', ratio=1.0)
  toy.assert_close_trees(found.shared, plain[0], 1e-5)
  assert not any(x.any() for x in states.states[STATE].values())


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['int', 'qsgd'])
def test_rounded_updates_train_like_the_plain_run(config, kind, plain):
  shared, full = plain
  found, _, (log, _), _ = toy_run(config, kind=kind, bits=16)
  toy.assert_close_trees(found.shared, shared, 2e-3)
  assert any((found.shared[n] != shared[n]).any() for n in shared)
  params, running = trees.trainable(shared)
  wanted = sum(2 * x[0].size + 4 for x in params.values())
  wanted += sum(4 * x[0].size for x in running.values())
  assert log['up']['model'] == 4 * wanted
  assert log['down'] == full['down']


def test_sent_and_kept_add_up_to_all_updates(config):
  """With the server's model fixed: sum of sent + error = sum of updates."""
  made = compress.make(compress.Options(kind='topk', ratio=0.3)).transport
  assert made and made.init and made.up
  rng = np.random.default_rng(0)
  shared = {
    KERNEL: rng.standard_normal((3, 2)).astype('f4'),
    MEAN: np.ones(2, 'f4'),
  }
  state = made.init(shared)
  assert {*state} == {KERNEL}
  total, sent = np.zeros((3, 2)), np.zeros((3, 2))
  for _ in range(5):
    trained = {n: x + rng.standard_normal(x.shape) for n, x in shared.items()}
    upload = handmade.context(types.Upload, shared=trained)
    received = handmade.context(types.Broadcast, shared=shared)
    state, arrived = made.up(state, upload, received, jax.random.key(0))
    np.testing.assert_array_equal(arrived.shared[MEAN], trained[MEAN])
    moved = np.asarray(arrived.shared[KERNEL]) - shared[KERNEL]
    assert (np.abs(moved) > 1e-6).sum() == 2  # 0.3 of 6
    total += trained[KERNEL] - shared[KERNEL]
    sent += moved
  np.testing.assert_allclose(sent + state[KERNEL], total, atol=1e-5)


@pytest.mark.slow
def test_a_lost_upload_keeps_the_error_before_it(config):
  def spoil(store):
    rows = store.stacked()
    for x in rows.personal.values():
      x[1] = np.nan
    store.write(range(4), rows, np.arange(4) == 1)

  _, states, logs, before = toy_run(config, spoil=spoil, kind='topk')
  assert logs[1]['valid'].tolist() == [True, False, True, True]
  for name, x in states.states[STATE].items():
    np.testing.assert_array_equal(x[1], before.states[STATE][name][1])
    assert x.any() or 'bias' in name
  assert any(
    (x[0] != before.states[STATE][name][0]).any()
    for name, x in states.states[STATE].items()
  )


def test_clients_round_with_keys_of_their_own():
  made = compress.make(compress.Options(bits=2)).transport
  assert made and made.up
  shared = {KERNEL: jnp.zeros((30, 20))}
  trained = {KERNEL: jnp.linspace(-1, 1, 600).reshape(30, 20)}
  received = handmade.context(types.Broadcast, shared=shared)
  upload = handmade.context(types.Upload, shared=trained)
  one, other = (
    made.up((), upload, received, jax.random.key(k))[1].shared[KERNEL]
    for k in (0, 1)
  )
  assert (one != other).any()
  assert {*np.unique(one)} == {-1.0, 0.0, 1.0}


def test_without_compression_the_bytes_are_those_of_the_arrays():
  shapes = {KERNEL: jnp.zeros((3, 2)), MEAN: jnp.zeros(2)}
  plain = handmade.algorithm((fedpav.make(),))
  assert round_log.sent_bytes(plain, MODEL, shapes) == 4 * 8
  half = compress.make(compress.Options(kind='topk', ratio=0.5))
  made = handmade.algorithm((fedpav.make(), half))
  # Three of six values, a mask of one byte, and two running means.
  assert round_log.sent_bytes(made, MODEL, shapes) == 3 * 4 + 1 + 2 * 4


def test_two_components_cannot_compress():
  one = compress.make()
  with pytest.raises(errors.ConfigError, match='both compress'):
    compose.check((fedpav.make(), one, one._replace(name='again')))


def values(num, seed=0):
  return np.random.default_rng(seed).standard_normal(num).astype('f4')


def packed(found, scale, bits):
  """The bytes of codes of some bits, and of their scale."""
  most = compress.levels(bits)
  codes = np.rint(np.asarray(found, 'f8') * most / scale).astype(int) + most
  assert codes.min() >= 0 and codes.max() < 2**bits
  np.testing.assert_allclose((codes - most) * scale / most, found, rtol=1e-5)
  rows = (codes[:, None] >> np.arange(bits)) & 1
  return np.packbits(rows.astype(np.uint8)).tobytes() + np.float32(scale)


@pytest.mark.parametrize('bits', [2, 3, 8, 16])
@pytest.mark.parametrize('by_norm', [False, True])
def test_codes_fit_into_their_bits_and_the_bytes_are_those_sent(bits, by_norm):
  own = values(1001)
  found = compress.rounded(jax.random.key(0), own, bits, by_norm)
  scale = np.linalg.norm(own) if by_norm else np.abs(own).max()
  sent = packed(found, scale, bits)
  assert len(sent) == compress.rounded_bytes([1001], bits)
  step = scale / compress.levels(bits)
  assert np.abs(found - own).max() < step * 1.0001
  assert compress.rounded_bytes([1001, 7], bits) == len(sent) + 4 + -(
    -7 * bits // 8
  )


@pytest.mark.parametrize('by_norm', [False, True])
def test_rounding_has_no_bias_and_a_bounded_error(by_norm):
  own = values(50)
  keys = jax.random.split(jax.random.key(1), 4000)
  found = jax.vmap(lambda key: compress.rounded(key, own, 3, by_norm))(keys)
  scale = np.linalg.norm(own) if by_norm else np.abs(own).max()
  error = np.asarray(found).mean(0) - own
  assert np.abs(error).max() < 5 * scale / 3 / 2 / np.sqrt(4000)
  squared = ((np.asarray(found, 'f8') - own) ** 2).sum(1).mean()
  bound = min(50 / 3**2, np.sqrt(50) / 3) * np.linalg.norm(own) ** 2
  assert 0 < squared < bound


@pytest.mark.parametrize('factor', [2.0**90, 2.0**-90])
def test_the_norm_of_large_and_small_values_is_finite(factor):
  key, own = jax.random.key(0), values(50)
  found = compress.rounded(key, factor * own, 8, True)
  wanted = compress.rounded(key, own, 8, True)
  np.testing.assert_array_equal(found, factor * wanted)


def test_zeros_and_nan_stay():
  key = jax.random.key(0)
  assert not compress.rounded(key, jnp.zeros(5), 8, False).any()
  wrong = compress.rounded(key, jnp.array([1.0, np.nan]), 8, True)
  assert np.isnan(wrong).any()


@pytest.mark.parametrize('ratio', [0.01, 0.3, 1.0])
def test_the_largest_of_all_leaves_are_kept(ratio):
  leaves = {'b': values(60).reshape(6, 10), 'a': values(41, 1) * 3}
  found = compress.largest(leaves, ratio)
  flat = np.concatenate([leaves['a'], leaves['b'].ravel()])
  number = int(np.ceil(ratio * 101))
  wanted = np.zeros(101, 'f4')
  best = np.argsort(-np.abs(flat), kind='stable')[:number]
  wanted[best] = flat[best]
  got = np.concatenate([found['a'], np.ravel(found['b'])])
  np.testing.assert_array_equal(got, wanted)
  lost = ((flat - got) ** 2).sum()
  assert lost <= (1 - number / 101) * (flat**2).sum() + 1e-6


def test_equal_magnitudes_keep_the_first():
  found = compress.largest({'a': jnp.array([1.0, -2.0, 2.0, -2.0])}, 0.5)
  np.testing.assert_array_equal(found['a'], [0.0, -2.0, 2.0, 0.0])


@pytest.mark.parametrize('ratio, places', [(0.01, 4 * 100), (0.5, 1250)])
def test_places_are_indices_or_a_mask(ratio, places):
  own = values(10000)
  found = np.asarray(compress.largest({'a': own}, ratio)['a'])
  (index,) = np.nonzero(found)
  as_index = index.astype(np.uint32).tobytes()
  as_mask = np.packbits(found != 0).tobytes()
  shorter = min(as_index, as_mask, key=len)
  assert len(shorter) == places
  sent = found[index].tobytes() + shorter
  assert len(sent) == compress.largest_bytes(10000, ratio)
