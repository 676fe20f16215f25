"""Reconstructed images beside the nearest real ones (DFH, figure 5)."""

from typing import Any

import numpy as np

from fedreid_jax.core.types import ClientData
from fedreid_jax.figures import canvas
from fedreid_jax.figures.canvas import Photo
from fedreid_jax.privacy.reconstruction import Reconstructed, Verdict

NEAREST = 3
SHOWN = 16  # identities
BLOCKS = 2  # identities in a row


def draw(
  reconstructed: Reconstructed, verdict: Verdict, client: ClientData, title: str
) -> Any:
  """Draws reconstructed, real and nearest real images of some identities.

  Args:
    reconstructed: images.
    verdict: on these images.
    client: owner of the real images.
    title: of the figure.
  """
  images = client.images()

  def block(k: int) -> list[Photo | None]:
    person = reconstructed.labels[k]
    own = np.flatnonzero(client.labels == person)[0]
    return [
      Photo(reconstructed.photos[k], None, f'person {person}'),
      Photo(images[own], None, f'person {person}'),
      *(
        Photo(
          images[row],
          bool(client.labels[row] == person),
          f'person {client.labels[row]}',
        )
        for row in verdict.nearest[k, :NEAREST]
      ),
    ]

  num = min(len(reconstructed.labels), SHOWN)
  titles = [
    'reconstructed',
    'real',
    *(f'nearest {k + 1}' for k in range(NEAREST)),
  ]
  empty: list[Photo | None] = [None] * len(titles)
  rows = []
  for first in range(0, num, BLOCKS):
    row = [block(k) if k < num else empty for k in range(first, first + BLOCKS)]
    rows.append([photo for part in row for photo in part])
  starts = [k * len(titles) for k in range(BLOCKS)]
  gaps = [*starts[1:], *(start + 2 for start in starts)]
  return canvas.sheet(rows, titles * BLOCKS, title, gaps)
