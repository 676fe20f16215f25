"""Rendered images that a process keeps for its later runs.

The runs of a study have few domains between them, and rendering them takes a
tenth of a short run. Images are kept up to a size, and the least recently used
are dropped, so that at most 288 MiB are kept.
"""

import functools
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax.data.synthetic import photographs

MAX_BYTES = 6 * 2**20  # of the images of one call that are kept
MAX_CALLS = 48


def images(
  domain: int,
  identities: int,
  cameras: int,
  shots: int,
  *,
  height: int,
  width: int,
  **options: Any,
) -> UInt8[np.ndarray, 'M H W 3']:
  """Returns the images of `photographs.generate`, which must not be changed.

  Args:
    domain: as in `photographs.generate`, like all others.
    identities: number of identities.
    cameras: number of cameras.
    shots: number of shots of an identity by a camera.
    height: H, pixels.
    width: W, pixels.
    **options: `seed`, `modality` and the others.
  """
  num_bytes = identities * cameras * shots * height * width * 3
  render = _kept if num_bytes <= MAX_BYTES else _rendered
  return render(
    domain, identities, cameras, shots, height=height, width=width, **options
  )


def _rendered(*sizes: int, **options: Any) -> UInt8[np.ndarray, 'M H W 3']:
  found = photographs.generate(*sizes, **options).images
  found.setflags(write=False)
  return found


_kept = functools.lru_cache(MAX_CALLS)(_rendered)
