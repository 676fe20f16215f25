"""The secret of a run, from which noise, masks and private samples follow.

A guarantee of privacy holds against somebody who cannot guess the noise. The
seed of a run can be guessed, because it has 31 bits. A secret has 256 bits of
the operating system, and every use has a key of its own,

  HMAC-SHA256(secret, purpose / round / client / digest),

with the digest of the configuration and of the data. In compiled programs
ChaCha20 (`core.chacha`) derives the keys of streams, components and steps from
the key of the round and the client, also with 256 bits.

H. Krawczyk, M. Bellare and R. Canetti, HMAC: keyed-hashing for message
authentication, RFC 2104.
"""

import dataclasses
import hashlib
import hmac
import secrets
from typing import Annotated, Literal

import numpy as np

from fedreid_jax.core.options import Earlier

SIZE = 32  # bytes
Origin = Literal['system', 'seed']
STUDY = 'a study figure: the noise follows from the seed'


@dataclasses.dataclass(frozen=True)
class Privacy:
  """The origin of the draws that a guarantee of privacy rests on."""

  secret: Annotated[
    Origin,
    Earlier('seed'),
    'origin of noise, masks and private samples: system draws 256 bits that '
    'the run keeps in a file of its own; seed is for reproducible studies and '
    'protects nobody, because a seed can be guessed',
  ] = 'system'


def draw() -> bytes:
  """Returns 32 random bytes of the operating system for a new secret."""
  return secrets.token_bytes(SIZE)


def of_seed(seed: int) -> bytes:
  """Returns the secret that follows from a seed, for reproducible studies.

  It protects nobody, because an attacker can try all seeds.
  """
  return hashlib.sha256(f'fedreid_jax secret of seed {seed}'.encode()).digest()


class Secret:
  """Derives keys and generators from a secret.

  Printing an instance does not show the secret.
  """

  def __init__(self, root: bytes, digest: str):
    """Keeps the secret.

    Args:
      root: `SIZE` bytes of `draw` or `of_seed`.
      digest: digest of the configuration and the data of the run.
    """
    self._root, self._digest = root, digest

  def words(self, round_: int, uid: int) -> np.ndarray:
    """Returns the key of a client for compiled programs, uint32 `[8]`.

    Args:
      uid: hash of the client's name, 0 for the server.
    """
    return np.frombuffer(self._derived('program', round_, uid), '<u4')

  def generator(
    self, purpose: str, round_: int, uid: int
  ) -> np.random.Generator:
    """Returns a NumPy generator with a key of 128 bits."""
    found = self._derived(f'host {purpose}', round_, uid)
    # A key of Philox has 128 bits.
    words = np.frombuffer(found[:16], '<u8')
    return np.random.Generator(np.random.Philox(key=words))

  def _derived(self, purpose: str, round_: int, uid: int) -> bytes:
    # Without the digest, two runs on data that differ in one person would add
    # the same noise, and their difference would have none.
    text = f'{purpose}/{round_}/{uid}/{self._digest}'
    return hmac.digest(self._root, text.encode(), 'sha256')
