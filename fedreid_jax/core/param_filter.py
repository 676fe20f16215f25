"""Flat dicts of variables, and the division of one by names."""

import hashlib

import numpy as np
from flax import traverse_util

from fedreid_jax.core import patterns
from fedreid_jax.core.types import Flat, Tree


def flatten(tree: Tree) -> Flat:
  """Returns a nested dict of variables as one like `{'params/a/b': leaf}`."""
  return traverse_util.flatten_dict(tree, sep='/')


def unflatten(flat: Flat) -> Tree:
  """Returns a flat dict of variables as the nested dict that Flax uses."""
  return traverse_util.unflatten_dict(flat, sep='/')


def split(flat: Flat, pattern: str) -> tuple[Flat, Flat]:
  """Returns (entries whose name starts with a match, all other entries)."""
  matches = patterns.Pattern(pattern, 'fedpav.shared').match
  chosen = {name: leaf for name, leaf in flat.items() if matches(name)}
  return chosen, {n: leaf for n, leaf in flat.items() if n not in chosen}


def trainable(flat: Flat) -> tuple[Flat, Flat]:
  """Returns (parameters, running statistics)."""
  return split(flat, 'params/')


def digest(flat: Flat) -> str:
  """Returns the SHA-256 of names, types, shapes and bits, as hexadecimal."""
  found = hashlib.sha256()
  # Sorted, so that the digest does not depend on the order of the dict.
  for name, value in sorted(flat.items()):
    value = np.asarray(value)
    found.update(f'{name} {value.dtype} {value.shape}\n'.encode())
    found.update(value.tobytes())
  return found.hexdigest()
