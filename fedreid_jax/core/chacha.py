"""A random number generator for JAX with keys of 256 bits: ChaCha20.

Y. Nir and A. Langley, ChaCha20 and Poly1305 for IETF protocols, RFC 8439,
section 2.3. The functions of `jax.random` accept the keys that `wrap` returns.

JAX's default generator (Threefry) is not a cipher, and its keys of 64 bits are
found with 2^64 guesses. A key of ChaCha20 takes 2^256 guesses, and no known
method distinguishes its output from random bits without the key.
"""

import functools
import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import random as custom

from fedreid_jax import errors
from fedreid_jax.core.types import Array

WORDS = 8  # 32-bit words of a key
WIDTHS = 8, 16, 32  # bits of the integers that can be drawn
_CONSTANTS = tuple(np.frombuffer(b'expand 32-byte k', '<u4').tolist())
# The last word of the nonce is different for each use of a key, so that its
# bits, its parts and the keys folded from it come from different blocks.
_BITS, _SPLIT, _FOLD = 0, 1, 2
# Words of the state in a column round, and in a diagonal round.
_QUARTERS = (
  *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
  *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)
State = tuple[Array, ...]


def wrap(words: Array) -> Array:
  """Returns JAX keys `[...]` from the words of keys, uint32 `[..., 8]`."""
  return cast(Array, jax.random.wrap_key_data(words, impl=_IMPLEMENTATION))


def blocks(key: Array, counters: Array, nonce: tuple[int, int, int]) -> Array:
  """Returns blocks of the key stream, uint32 `[16, n]`.

  Args:
    key: uint32 `[8]`.
    counters: number of each block, uint32 `[n]`.
    nonce: three words of 32 bits.
  """
  zero = jnp.zeros_like(counters)
  first = [*_CONSTANTS, *key, counters, *nonce]
  start = tuple(zero + jnp.asarray(x, jnp.uint32) for x in first)
  # A loop keeps the program small: every array with noise has a copy of it.
  mixed = cast(State, jax.lax.fori_loop(0, 10, _double_round, start))
  return jnp.stack([a + b for a, b in zip(mixed, start, strict=True)])


def _double_round(i: Array, state: State) -> State:
  del i
  words = list(state)
  for a, b, c, d in _QUARTERS:
    for x, y, z, shift in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8)):
      words[x] += words[y]
      words[z] = _rotated(words[z] ^ words[x], shift)
    words[c] += words[d]
    words[b] = _rotated(words[b] ^ words[c], 7)
  return tuple(words)


def _rotated(x: Array, shift: int) -> Array:
  return (x << jnp.uint32(shift)) | (x >> jnp.uint32(32 - shift))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _random_bits(key: Array, width: int, shape: tuple[int, ...]) -> Array:
  """Returns unsigned integers of 8, 16 or 32 bits.

  Raises:
    InternalError: for another width, such as 64 bits for float64.
  """
  if width not in WIDTHS:
    raise errors.InternalError(
      f'random integers of {width} bits from a ChaCha20 key',
      'core.chacha',
      f'draw integers of {", ".join(map(str, WIDTHS))} bits or float32',
    )
  count = math.prod(shape)
  words = -(-count * width // 32)
  stream = blocks(key, _counters(-(-words // 16)), (0, 0, _BITS))
  bits = stream.T.reshape(-1)[:words]
  if width < 32:
    # The low part of a word comes first, as in the byte stream of the RFC.
    shifts = jnp.arange(0, 32, width, dtype=jnp.uint32)
    bits = (bits[:, None] >> shifts).astype(f'uint{width}').reshape(-1)
  return bits[:count].reshape(shape)


def _split(key: Array, shape: tuple[int, ...]) -> Array:
  keys = blocks(key, _counters(math.prod(shape)), (0, 0, _SPLIT))[:WORDS]
  return keys.T.reshape(*shape, WORDS)


def _fold_in(key: Array, data: Any) -> Array:
  # The number is the counter, so that each number gives a block of its own.
  counter = jnp.asarray(data).astype(jnp.uint32)[None]
  return blocks(key, counter, (0, 0, _FOLD))[:WORDS, 0]


def _seed(seed: Array) -> Array:
  return jnp.zeros(WORDS, jnp.uint32).at[0].set(seed.astype(jnp.uint32))


def _counters(count: int) -> Array:
  return jnp.arange(count, dtype=jnp.uint32)


_IMPLEMENTATION = custom.define_prng_impl(
  key_shape=(WORDS,),
  seed=_seed,
  split=_split,
  random_bits=_random_bits,
  fold_in=_fold_in,
  name='chacha20',
  tag='chacha',
)
