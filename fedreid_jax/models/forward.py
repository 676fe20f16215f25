"""The context of a forward pass, which every network receives beside images."""

import inspect
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Int

from fedreid_jax import errors
from fedreid_jax.core.types import Array


class ForwardCtx(NamedTuple):
  """All that a network may know about a batch beside its pixels.

  A row is an image or, with T images for each row of the fields, a tracklet of
  T frames.

  Attributes:
    train: whether it trains, so that layers use the statistics of the batch. It
      is never traced.
    mask: False for padded samples, which do not enter statistics; None if all
      are real.
    modalities: 0 visible, 1 infrared; None counts as visible.
    labels: identities, in training only.
    cameras: number of the camera of each image, in training only.
  """

  train: bool
  mask: Bool[Array, ' B'] | None = None
  modalities: Int[Array, ' B'] | None = None
  labels: Int[Array, ' B'] | None = None
  cameras: Int[Array, ' B'] | None = None


def frames(images: Float[Array, 'M H W ch'], ctx: ForwardCtx) -> int:
  """Number of images for each row of a context, the frames of a tracklet."""
  columns = (ctx.mask, ctx.modalities, ctx.labels, ctx.cameras)
  sizes = [column.shape[0] for column in columns if column is not None]
  # A context that says nothing of rows is of single images. In an exported
  # program the sizes are names, which can only be compared.
  number = images.shape[0]
  return number // min(sizes) if sizes and number not in sizes else 1


def of_frames(ctx: ForwardCtx, number: int) -> ForwardCtx:
  """A context of tracklets as that of their frames."""
  train, *columns = ctx
  return ForwardCtx(
    train, *jax.tree.map(lambda x: jnp.repeat(x, number), columns)
  )


def check(module: nn.Module, where: str) -> None:
  """Refuses a network that is not called as `module(images, ctx)`.

  Args:
    where: field that names the network, for the message.

  Raises:
    ConfigError: the message says what the keywords of earlier versions are now.
  """
  signature = inspect.signature(type(module).__call__)
  try:
    signature.bind_partial(module, None, None)
  except TypeError as error:
    old = [name for name in ForwardCtx._fields if name in signature.parameters]
    name, taken = type(module).__name__, ', '.join(old) or 'no context'
    raise errors.ConfigError(
      f'{name}.__call__ takes {taken}',
      where,
      'renamed to one argument: define __call__(self, images, ctx) and read '
      f'{", ".join(f"ctx.{name}" for name in old or ("train", "mask"))}',
    ) from error
