"""Exact samples of the discrete Gaussian, by integer arithmetic alone.

C. Canonne, G. Kamath and T. Steinke, The discrete Gaussian for differential
privacy, NeurIPS 2020, algorithms 1 to 3. An integer x has the probability

  exp(-x^2 / (2 sigma^2)) / sum_y exp(-y^2 / (2 sigma^2)).

The sampler uses no floating-point number, so that attacks on the rounding of
floating-point noise do not apply. SHAKE-256 generates the random bits.

For vectors v, w of integers with |v - w|_2 <= D, the mechanism that adds one
sample to each coordinate has at most the Renyi divergence of the Gaussian
mechanism, a D^2 / (2 sigma^2) at every order a (proposition 5, theorem 14).
"""

import hashlib
from typing import Any

import numpy as np

CHUNK = 2**20  # bytes of the stream at a time
# Arrays of dtype object with Python's integers: squares and products of the
# sampler exceed 64 bits.
Integers = np.ndarray


class Bits:
  """A stream of random bits, determined by a key of 32 bytes or fewer."""

  def __init__(self, key: bytes):
    self._key, self._chunks, self._left = key, 0, b''

  def words(self, count: int) -> np.ndarray:
    """Returns uniform integers below 2^64."""
    wanted = 8 * count
    parts, have = [self._left], len(self._left)
    while have < wanted:
      # A counter after the key makes every chunk a hash of a different input.
      number = self._chunks.to_bytes(8, 'little')
      parts.append(hashlib.shake_256(self._key + number).digest(CHUNK))
      self._chunks, have = self._chunks + 1, have + CHUNK
    stream = b''.join(parts)
    self._left = stream[wanted:]
    return np.frombuffer(stream[:wanted], '<u8')


def sample(bits: Bits, count: int, sigma: int) -> np.ndarray:
  """Returns independent samples, int64; `sigma` is nearly their deviation."""
  found = np.zeros(count, np.int64)
  if not sigma:
    return found
  # The paper's t = floor(sigma) + 1; sigma is an integer here.
  scale, missing = sigma + 1, np.arange(count)
  while len(missing):
    drawn, usable = _laplace(bits, len(missing), scale)
    # Algorithm 3's (|x| - sigma^2 / t)^2 / (2 sigma^2), as a ratio of integers.
    far = (abs(drawn) * scale - sigma**2) ** 2
    near = 2 * sigma**2 * scale**2
    places = np.flatnonzero(usable)
    accepted = places[_exponential(bits, far[places], near)]
    found[missing[accepted]] = drawn[accepted].astype(np.int64)
    missing = np.delete(missing, accepted)
  return found


def _laplace(bits: Bits, count: int, scale: int) -> tuple[Integers, np.ndarray]:
  """Draws discrete Laplace samples, and a mask of those that are accepted."""
  low = _below(bits, count, scale).astype(object)
  usable = _exponential(bits, low, scale)
  high = np.zeros(count, object)
  going = np.flatnonzero(usable)
  while len(going):
    going = going[_exponential(bits, np.ones(len(going), object), 1)]
    high[going] += 1
  size = low + scale * high
  negative = bits.words(count) >> np.uint64(63) == 1
  # Otherwise zero would be drawn twice as often, as +0 and as -0.
  usable &= ~(negative & (size == 0))
  return np.where(negative, -size, size), usable


def _below(bits: Bits, count: int, limit: int) -> np.ndarray:
  """Returns uniform integers below a limit, by rejection."""
  found = np.zeros(count, np.uint64)
  missing = np.arange(count)
  # The remainder is uniform only up to the last multiple of the limit.
  largest = np.uint64(2**64 // limit * limit - 1)
  while len(missing):
    drawn = bits.words(len(missing))
    usable = drawn <= largest
    found[missing[usable]] = drawn[usable] % np.uint64(limit)
    missing = missing[~usable]
  return found


def _exponential(bits: Bits, over: Integers, under: int) -> np.ndarray:
  """Draws Bernoulli trials of probability exp(-over / under), over >= 0."""
  count = len(over)
  found = np.ones(count, bool)
  # exp(-n - r) = exp(-1)^n exp(-r): a trial for each whole number, and one of
  # the rest, which is below 1 as `_at_most_one` requires.
  whole, rest = over // under, over % under
  going = np.flatnonzero(whole > 0)
  while len(going):
    passed = _at_most_one(bits, np.ones(len(going), object), 1)
    found[going[~passed]] = False
    going = going[passed]
    whole[going] -= 1
    going = going[whole[going] > 0]
  left = np.flatnonzero(found)
  found[left] = _at_most_one(bits, rest[left], under)
  return found


def _at_most_one(bits: Bits, over: Integers, under: int) -> np.ndarray:
  """Draws trials of `_exponential` with over / under of at most 1."""
  number = np.ones(len(over), object)
  going = np.arange(len(over))
  while len(going):
    going = going[_trials(bits, over[going], under * number[going])]
    number[going] += 1
  # By the series of exp(-x), the run of successes ends at an odd number with
  # exactly this probability.
  return (number % 2 == 1).astype(bool)


def _trials(bits: Bits, over: Integers, under: Integers) -> np.ndarray:
  """Draws Bernoulli trials with the rational probability over / under."""
  shifted: Any = over * 2**64
  limit, drawn = shifted // under, bits.words(len(over))
  # A probability of 1 has the limit 2^64, which is no uint64.
  certain = (limit >= 2**64).astype(bool)
  compared = np.where(certain, 0, limit).astype(np.uint64)
  found = certain | (drawn < compared)
  # Equal in 64 bits: the next 64 binary digits decide, so that nothing is
  # rounded.
  for i in np.flatnonzero(~certain & (drawn == compared)):
    rest = np.array([shifted[i] % under[i]], object)
    found[i] = _trials(bits, rest, under[i : i + 1])[0]
  return found
