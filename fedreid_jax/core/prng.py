"""All random keys of the package, as functions of their use.

A key is `fold_in(fold_in(fold_in(key(seed), STREAM), round), client_uid)`,
followed by step and image. Keys are neither stored nor split by position, so
that adding, removing or reordering clients does not change the random numbers
of other clients, and a resumed round has the same random numbers.

If a run has a `core.secret.Secret`, the streams of `SECRET` follow from the
secret: ChaCha20 keys, from words that the secret derives for the round and the
client, replace `key(seed)`.
"""

import enum
import hashlib
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import chacha
from fedreid_jax.core.secret import Secret
from fedreid_jax.core.types import Array, ClientTask


class Stream(enum.IntEnum):
  """One constant per use of randomness; values are never reused or changed."""

  MODEL = 0
  CLASSIFIER = 1
  COHORT = 2
  SAMPLER = 3
  AUGMENT = 4
  DROPOUT = 5
  TERM = 6
  UP = 7
  DOWN = 8
  SERVER = 9
  PASS = 10
  SERVER_INIT = 11
  AVAILABILITY = 16
  DEVICE = 17
  POISON = 12
  BEFORE = 18


# Draws of components, such as noise and masks. Anybody who guesses the seed of
# 31 bits could repeat them; with a secret they do not follow from the seed.
SECRET = frozenset(
  (Stream.TERM, Stream.UP, Stream.DOWN, Stream.SERVER, Stream.BEFORE)
)
# Words of the seed in the array that programs receive; a secret's words follow.
PUBLIC_WORDS = 2


def client_uid(name: str) -> int:
  """Returns the first 31 bits of the SHA-256 of a client's name."""
  digest = hashlib.sha256(name.encode()).digest()
  return int.from_bytes(digest[:4], 'big') >> 1


def component_uid(name: str) -> int:
  """Returns the number that is folded into a component's keys."""
  return client_uid('component:' + name)


def data(seed: int) -> np.ndarray:
  """Returns the seed of a run as an argument of its programs, uint32 `[2]`."""
  # A program that has the seed as a constant is compiled again for every seed.
  return np.asarray(jax.random.key_data(jax.random.key(seed)))


def of_round(
  seed: np.ndarray, secret: Secret | None, round_: int, uid: int = 0
) -> np.ndarray:
  """Returns `data` in a round, uint32 `[2]`, or `[10]` with words of a secret.

  Args:
    uid: hash of the name of the client that draws, 0 for the server.
  """
  if secret is None:
    return seed
  return np.concatenate([seed, secret.words(round_, uid)])


def key(seed: Array, stream: Stream, round_: Array | int = 0) -> Array:
  """Returns the key of a stream in a round.

  Args:
    round_: global round, which may be traced.
  """
  public, secret = seed[..., :PUBLIC_WORDS], seed[..., PUBLIC_WORDS:]
  if stream in SECRET and secret.shape[-1]:
    base = chacha.wrap(jnp.asarray(secret))
  else:
    base = cast(Array, jax.random.wrap_key_data(public))
  return jax.random.fold_in(jax.random.fold_in(base, int(stream)), round_)


def client(
  seed: Array, stream: Stream, round_: Array | int, uid: Array | int
) -> Array:
  """Returns the key of a client in a round; `uid` is its `client_uid`."""
  return jax.random.fold_in(key(seed, stream, round_), uid)


def of_task(task: ClientTask, stream: Stream, round_: Array | int) -> Array:
  """Returns the key of the client of a task in a round."""
  return client(task.seed, stream, round_, task.uid)


def host(
  seed: int | Secret, stream: Stream, round_: int, uid: int
) -> np.random.Generator:
  """Returns a NumPy generator that depends on its four arguments only."""
  if isinstance(seed, Secret):
    return seed.generator(stream.name, round_, uid)
  sequence = np.random.SeedSequence([seed, int(stream), round_, uid])
  return np.random.Generator(np.random.Philox(sequence))
