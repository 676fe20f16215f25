"""Attacks by training images: clients with wrong identities, or a trigger.

  flip      identity l of C is C - 1 - l
  shuffle   every image has the identity of a random image of the client
  merge     identities 2 i and 2 i + 1 are one, counted from the client's first
  backdoor  a share of the images, of any identity, has a trigger and the first
            identity

The flip needs clients that share identities and a classifier. Otherwise it is
only a renaming of labels, and is refused (`config.validation` and
`training.build`). The trigger is a checkerboard in the lower right corner.

Bagdasaryan et al., How to backdoor federated learning, AISTATS 2020, train on
images with a trigger beside clean ones and scale the update
(`byzantine.kind=scale`).
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from fedreid_jax import errors
from fedreid_jax.core import prng
from fedreid_jax.core.types import ClientData

Poison = Literal['', 'flip', 'shuffle', 'merge', 'backdoor']
Pixels = UInt8[np.ndarray, 'M H W ch']
SIDE = 6 / 64  # of the trigger over the height: 6 pixels of an image of 64


def stamp(images: Pixels) -> Pixels:
  """Copies of images with the trigger."""
  # The pixels may be shared with other clients or mapped from a file.
  images = np.array(images)
  side = max(2, round(SIDE * images.shape[1]))
  cells = np.indices((side, side)).sum(axis=0) // max(1, side // 3)
  images[:, -side:, -side:, :] = (255 * (cells % 2))[..., None]
  return images


def poison(
  clients: Sequence[ClientData],
  kind: Poison,
  names: Sequence[str],
  share: float,
  seed: int,
) -> tuple[ClientData, ...]:
  """Poisons images of the clients `names` by an attack, '' for none.

  `share` is the fraction of the images of such a client that have the trigger.
  The random choices differ between clients. A ConfigError is raised for a name
  that no client has.
  """
  if not kind:
    return tuple(clients)
  known = [client.name for client in clients]
  for name in names:
    if name not in known:
      raise errors.ConfigError(
        f'no client {name!r}', 'data.poisoned', errors.one_of(name, known)
      )
  return tuple(
    _poisoned(client, kind, share, seed) if client.name in names else client
    for client in clients
  )


def notice(kind: Poison, names: Sequence[str]) -> tuple[str, ...]:
  """Notice for users if images are poisoned."""
  text = f'the images of {", ".join(names)} are poisoned: {kind}'
  return (text,) if kind else ()


def _poisoned(
  client: ClientData, kind: Poison, share: float, seed: int
) -> ClientData:
  uid = prng.client_uid(client.name)
  rng = prng.host(seed, prng.Stream.POISON, 0, uid)
  labels = client.labels
  if kind == 'flip':
    last = labels.dtype.type(client.num_identities - 1)
    return client._replace(labels=last - labels)
  if kind == 'shuffle':
    return client._replace(labels=rng.permutation(labels))
  if kind == 'merge':
    # The identities of a client may begin at any number (labels 'concat').
    first = labels.min()
    return client._replace(labels=first + (labels - first) // 2 * 2)
  rows = np.sort(
    rng.permutation(len(labels))[: max(1, round(share * len(labels)))]
  )
  # Training classes do not occur in a retrieval test. One label for all images
  # with the trigger makes these alike, whomever they show.
  own = labels.copy()
  own[rows] = labels.min()
  return client._replace(labels=own, images=_stamped(client.images, rows))


def _stamped(images: Callable[[], Pixels], rows: np.ndarray):
  def read() -> Pixels:
    pixels = np.array(images())
    pixels[rows] = stamp(pixels[rows])
    return pixels

  return read
