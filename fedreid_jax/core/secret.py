"""The secret of a run, from which noise, masks and private samples follow.

A guarantee of privacy holds against somebody who cannot guess the noise. The
seed of a run can be guessed: it has 31 bits. A secret has 256 bits of the
operating system, and every use has a key of its own,

  HMAC-SHA256(secret, purpose / round / client / digest),

with the digest of the configuration and of the data. Without the digest, two
runs on data that differ in one person would add the same noise, and their
difference would have none. In compiled programs ChaCha20 derives the keys of
streams, components and steps from that of the round and the client
(`core.chacha`), also with 256 bits.

H. Krawczyk, M. Bellare and R. Canetti, HMAC: keyed-hashing for message
authentication, RFC 2104.
"""

import hashlib
import hmac
import secrets
from typing import Literal

import numpy as np

SIZE = 32  # bytes
Origin = Literal['system', 'seed']
STUDY = 'a study figure: the noise follows from the seed'


def draw() -> bytes:
  """Returns a new secret of the operating system."""
  return secrets.token_bytes(SIZE)


def of_seed(seed: int) -> bytes:
  """Returns the secret that follows from a seed, for reproducible studies.

  It protects nobody, because all seeds can be tried.
  """
  return hashlib.sha256(f'fedreid_jax secret of seed {seed}'.encode()).digest()


class Secret:
  """Derives keys and generators; printing it does not show it."""

  def __init__(self, root: bytes, digest: str):
    """Keeps the secret.

    Args:
      root: `SIZE` bytes of `draw` or `of_seed`.
      digest: of the configuration and the data of the run.
    """
    self._root, self._digest = root, digest

  def words(self, round_: int, uid: int) -> np.ndarray:
    """Returns the words of a client, 0 for the server, uint32 `[8]`."""
    return np.frombuffer(self._derived('program', round_, uid), '<u4')

  def generator(
    self, purpose: str, round_: int, uid: int
  ) -> np.random.Generator:
    """Returns a generator with a key of 128 bits."""
    found = self._derived(f'host {purpose}', round_, uid)
    words = np.frombuffer(found[:16], '<u8')
    return np.random.Generator(np.random.Philox(key=words))

  def _derived(self, purpose: str, round_: int, uid: int) -> bytes:
    text = f'{purpose}/{round_}/{uid}/{self._digest}'
    return hmac.digest(self._root, text.encode(), 'sha256')
