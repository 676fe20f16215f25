"""Draws that must not be guessed follow from a secret of 256 bits."""

import hashlib
import hmac

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.core import chacha, prng, secret
from fedreid_jax.core.prng import Stream
from fedreid_jax.core.secret import Secret

ROOT = bytes(range(32))
SECRET = Secret(ROOT, 'digest')
# RFC 8439, section 2.3.2 and appendix A.1, test vector 1.
VECTORS = [
  (
    (ROOT, 1, (0x09000000, 0x4A000000, 0)),
    '10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e'
    'd2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e',
  ),
  (
    (bytes(32), 0, (0, 0, 0)),
    '76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7'
    'da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586',
  ),
]


def key(root: bytes = ROOT):
  return chacha.wrap(jnp.asarray(np.frombuffer(root, '<u4')))


@pytest.mark.parametrize(('given', 'wanted'), VECTORS)
def test_blocks_are_those_of_the_standard(given, wanted):
  root, counter, nonce = given
  words = jnp.asarray(np.frombuffer(root, '<u4'))
  found = chacha.blocks(words, jnp.asarray([counter], jnp.uint32), nonce)
  assert np.asarray(found[:, 0]).astype('<u4').tobytes().hex() == wanted


def test_bits_are_the_stream_of_the_key_in_every_width():
  words = jnp.asarray(np.frombuffer(bytes(32), '<u4'))
  stream = chacha.blocks(words, jnp.arange(2, dtype=jnp.uint32), (0, 0, 0))
  wanted = np.asarray(stream).T.astype('<u4').tobytes()
  for name in ('u1', 'u2', 'u4'):
    count = 70 // np.dtype(name).itemsize
    found = np.asarray(jax.random.bits(key(bytes(32)), (count,), name))
    assert found.astype(f'<{name}').tobytes() == wanted[: found.nbytes]


def test_bits_of_another_width_are_refused():
  with jax.enable_x64(True), pytest.raises(errors.InternalError, match='64'):
    jax.random.bits(key(), (2,), 'u8')


def test_keys_of_a_vmap_are_those_of_a_loop():
  keys = [jax.random.fold_in(key(), i) for i in range(3)]
  each = [jax.random.bits(k, (5,)) for k in keys]

  def draw(i):
    return jax.random.bits(jax.random.fold_in(key(), i), (5,))

  found = jax.jit(jax.vmap(draw))(jnp.arange(3))
  np.testing.assert_array_equal(found, np.stack(each))
  assert len({int(x) for row in each for x in row}) == 15


def test_uses_of_a_key_do_not_share_bits():
  parts = [
    jax.random.bits(key(), (8,)),
    *jax.random.key_data(jax.random.split(key(), 2)),
    jax.random.key_data(jax.random.fold_in(key(), 0)),
  ]
  assert len({np.asarray(x).tobytes() for x in parts}) == len(parts)


def test_normals_have_the_moments_of_normals():
  drawn = np.asarray(jax.random.normal(key(), (200_000,)), np.float64)
  assert abs(drawn.mean()) < 4 / np.sqrt(len(drawn))
  assert abs(drawn.var() - 1) < 4 * np.sqrt(2 / len(drawn))
  assert abs((drawn**4).mean() - 3) < 4 * np.sqrt(96 / len(drawn))


def test_keys_are_message_authentication_codes_of_their_use():
  wanted = hmac.new(ROOT, b'program/3/7/digest', hashlib.sha256).digest()
  assert SECRET.words(3, 7).astype('<u4').tobytes() == wanted


def test_each_part_of_a_use_changes_the_key():
  uses = [
    SECRET.words(3, 7),
    SECRET.words(7, 3),
    SECRET.words(3, 8),
    Secret(ROOT, 'other').words(3, 7),
    Secret(bytes(32), 'digest').words(3, 7),
  ]
  assert len({x.tobytes() for x in uses}) == len(uses)
  drawn = {
    SECRET.generator(purpose, round_, uid).integers(2**62)
    for purpose in ('COHORT', 'SAMPLER')
    for round_ in (0, 1)
    for uid in (0, 1)
  }
  assert len(drawn) == 8


def test_a_secret_of_the_system_is_new_and_that_of_a_seed_is_not():
  assert len({secret.draw() for _ in range(100)}) == 100
  assert secret.of_seed(1) == secret.of_seed(1) != secret.of_seed(2)
  assert len(secret.of_seed(1)) == len(secret.draw()) == secret.SIZE


def test_a_secret_is_not_printed():
  assert ROOT.hex() not in repr(SECRET) and str(ROOT) not in repr(SECRET)


def test_only_draws_of_components_follow_from_the_secret():
  seed = prng.data(0)
  with_secret = prng.of_round(seed, SECRET, 0, 5)
  assert with_secret.shape == (10,)
  for stream in Stream:
    public = jax.random.normal(prng.client(jnp.asarray(seed), stream, 0, 5))
    found = jax.random.normal(
      prng.client(jnp.asarray(with_secret), stream, 0, 5)
    )
    assert (public != found) == (stream in prng.SECRET), stream
  assert {Stream.TERM, Stream.SERVER, Stream.UP} <= prng.SECRET


def test_cohorts_and_batches_follow_from_the_secret():
  first = prng.host(SECRET, Stream.SAMPLER, 0, 1).integers(2**62)
  assert first != prng.host(0, Stream.SAMPLER, 0, 1).integers(2**62)
  assert first == prng.host(SECRET, Stream.SAMPLER, 0, 1).integers(2**62)
