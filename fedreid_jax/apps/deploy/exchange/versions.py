"""Embeddings of models with separate moments for each modality.

With `evaluation.batch_stats='modality'` batch normalisation has different
moments for infrared and for visible images. The program computes both
embeddings of an image and selects one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedreid_jax.core.types import Array, Flat

INFRARED = 'infrared:'  # before names of moments that only infrared images have


def join(versions: Sequence[Flat]) -> Flat:
  """Joins the variables of all versions of a model in one dict.

  Args:
    versions: variables for all images, or for visible and for infrared images.
  """
  joined = dict(versions[0])
  for infrared in versions[1:]:
    joined |= {
      INFRARED + name: value
      for name, value in infrared.items()
      # Parameters are equal and are stored once.
      if not np.array_equal(value, joined[name])
    }
  return joined


def select(embed: Callable[..., Array]) -> Callable[..., Array]:
  """Returns a function of `features.make_embedding` for variables of `join`."""

  def embedding(variables: Flat, images: Any, modalities: Any) -> Any:
    visible = {n: x for n, x in variables.items() if not n.startswith(INFRARED)}
    found = embed(visible, images, modalities)
    if len(visible) == len(variables):
      return found
    infrared = visible | {
      n.removeprefix(INFRARED): x
      for n, x in variables.items()
      if n.startswith(INFRARED)
    }
    other = embed(infrared, images, modalities)
    return jnp.where((modalities == 1)[:, None], other, found)

  return embedding
