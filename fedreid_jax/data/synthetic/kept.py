"""Keeps rendered images for later runs of the same process.

The runs of a study share few domains, and rendering takes a tenth of a short
run.
"""

import functools
from typing import Any

import numpy as np
from jaxtyping import UInt8

from fedreid_jax.data.synthetic import photographs

# At most 48 * 6 MiB = 288 MiB are kept; the least recently used are dropped.
MAX_BYTES = 6 * 2**20  # of the images of one call
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
  """Returns the images of `photographs.generate`, in a read-only array.

  Args:
    domain: number of the domain, as in `photographs.generate`.
    identities: number of identities.
    cameras: number of cameras.
    shots: number of shots of an identity by a camera.
    height: H, pixels.
    width: W, pixels.
    **options: `seed`, `modality` and other options of `photographs.generate`.
  """
  num_bytes = identities * cameras * shots * height * width * 3
  render = _kept if num_bytes <= MAX_BYTES else _rendered
  return render(
    domain, identities, cameras, shots, height=height, width=width, **options
  )


def _rendered(*sizes: int, **options: Any) -> UInt8[np.ndarray, 'M H W 3']:
  found = photographs.generate(*sizes, **options).images
  # Later calls return the same array.
  found.setflags(write=False)
  return found


_kept = functools.lru_cache(MAX_CALLS)(_rendered)
