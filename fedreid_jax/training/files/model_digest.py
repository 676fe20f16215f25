"""The identity of a model: vectors of different models cannot be compared."""

import hashlib
import json
from typing import Any

import numpy as np

from fedreid_jax.core import types

# Fields beside the weights that features depend on, where they may differ
# between models of equal weights.
FEATURE_FIELDS = (
  *('data.height', 'data.width', 'data.channels', 'data.invert'),
  *('data.resample', 'data.fast_decode', 'data.mean', 'data.std'),
  *('evaluation.feature', 'evaluation.flip'),
)


def of(config: Any, leaves: types.Flat) -> str:
  """Returns the SHA-256 of the leaves of a checkpoint and `FEATURE_FIELDS`."""
  fields = {
    name: config[section][field]
    for name in FEATURE_FIELDS
    for section, _, field in [name.partition('.')]
  }
  found = hashlib.sha256(json.dumps(fields).encode())
  for name in sorted(leaves):
    leaf = np.ascontiguousarray(leaves[name])
    found.update(f'{name} {leaf.dtype} {leaf.shape}'.encode())
    found.update(leaf.tobytes())
  return found.hexdigest()
