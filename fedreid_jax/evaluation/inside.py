"""Values inside a network, and its vectors as functions of them.

The functions are traced. They intercept calls of modules of Flax, so that a
network of any kind has its values, and none is built or called differently.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Float, Float32, UInt8

from fedreid_jax.core import types
from fedreid_jax.core.types import Array
from fedreid_jax.evaluation import features
from fedreid_jax.models import reid
from fedreid_jax.models.backbones import vit

View = Callable[[UInt8[Array, 'M H W ch']], Float[Array, 'M H W ch']]
Values = list[Float32[Array, 'M h w C']]


class Embedding(NamedTuple):
  """The arguments of `features.make_embedding`."""

  model: types.Model
  view: View
  flip: bool
  feature: str

  def __call__(
    self,
    inputs: Any,
    intercept: Callable[..., Any] | None = None,
    view: View | None = None,
  ) -> Float[Array, 'M D']:
    """Returns vectors; `inputs` are variables, images and modalities."""
    embed = features.make_embedding(
      self.model, view or self.view, flip=self.flip, feature=self.feature
    )
    with nn.intercept_methods(intercept or _unchanged):
      return embed(*inputs)


class Inside(NamedTuple):
  """Values at positions, and vectors as a function of them.

  Attributes:
    values: float32; with `flip`, the second half is of the mirror images.
    vectors: `(values) -> [M, D]`, of which no part before the values is run.
  """

  values: Values
  vectors: Callable[[Values], Float[Array, 'M D']]


class Attention(NamedTuple):
  """The attention of a vision transformer.

  Attributes:
    shapes: of the weights of each block, `(M, heads, T, T)`; with `flip`, the
      second half is of the mirror images.
    vectors: `(added) -> (vectors [M, D], weights)`, where `added` to the
      weights of each block is seen by all blocks after it.
    grid: rows and columns of the patches, which are the last tokens.
    prompts: tokens after the class token that are new in each block.
  """

  shapes: list[tuple[int, ...]]
  vectors: Callable[[list[Array]], tuple[Float[Array, 'M D'], list[Array]]]
  grid: tuple[int, int]
  prompts: int


def maps(embedding: Embedding, inputs: Any) -> Inside | None:
  """The maps of the backbone, None if they have a single position."""
  found: list[Any] = []

  def keep(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
    out = call(*args, **kwargs)
    if _is_backbone(context):
      found.append((out[0].astype(jnp.float32), out[1]))
    return out

  def vectors(values: Values) -> Float[Array, 'M D']:
    extras = (extra for _, extra in found)
    rest = zip(values, extras, strict=True)

    def replace(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
      if _is_backbone(context):  # it is not run again
        return next(rest)
      return call(*args, **kwargs)

    return embedding(inputs, replace)

  embedding(inputs, keep)
  shapes = {one.shape for one, _ in found}
  # Modules of others may have maps of another form, or call it several times.
  if any(len(s) != 4 or s[1] * s[2] == 1 for s in shapes) or len(shapes) != 1:
    return None
  return Inside([one for one, _ in found], vectors)


def pixels(embedding: Embedding, inputs: Any) -> Inside:
  """The normalised pixels."""
  found: Values = []

  def keep(images: Any) -> Array:
    found.append(embedding.view(images))
    return found[-1]

  def vectors(values: Values) -> Float[Array, 'M D']:
    rest = iter(values)
    return embedding(inputs, view=lambda _: next(rest))

  embedding(inputs, view=keep)
  return Inside(found, vectors)


def attention(embedding: Embedding, inputs: Any) -> Attention | None:
  """The attention of `models.backbones.vit`, None for other networks."""
  patches: list[tuple[tuple[int, int], int]] = []

  def vectors(
    added: Sequence[Array] = (),
  ) -> tuple[Float[Array, 'M D'], list[Array]]:
    found: list[Array] = []

    def add(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
      out, module = call(*args, **kwargs), context.module
      owner = module.parent
      if isinstance(owner, vit.ViT) and module.name == 'patch_embed_proj':
        patches.append((out.shape[1:3], owner.options.num_prompts))
      if not isinstance(module, vit.Attention):
        return out
      if context.method_name != 'weights':
        return out
      found.append(out)
      return out + added[len(found) - 1] if added else out

    return embedding(inputs, add), found

  _, found = vectors()
  if not found:
    return None
  return Attention([one.shape for one in found], vectors, *patches[0])


def _is_backbone(context: Any) -> bool:
  module = context.module
  return (
    isinstance(module.parent, reid.ReIDNet)
    and module.name == 'backbone'
    and context.method_name == '__call__'
  )


def _unchanged(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
  del context
  return call(*args, **kwargs)
