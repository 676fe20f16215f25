"""Inserts modules of published networks between the blocks of a backbone."""

from collections.abc import Callable

from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array

# `(stage from 1, block from 0, blocks of the stage, channels) -> module` or
# None; called as `module(x, train=, mask=)`, it returns maps or (maps, extras).
Rule = Callable[[int, int, int, int], nn.Module | None]


def after(
  rule: Rule | None,
  place: tuple[int, int, int],
  x: Float[Array, 'B h w D'],
  train: bool,
  mask: Bool[Array, ' B'] | None,
  extras: dict,
) -> Float[Array, 'B h w D']:
  """Applies the module that a rule defines for the place after a block, if any.

  Args:
    rule: a `Rule`, or None for no modules.
    place: stage from 1, block from 0, blocks of the stage.
    x: maps.
    train: use batch statistics.
    mask: real images, or None if all are.
    extras: dict to which the module's extras are added.
  """
  module = rule(*place, x.shape[-1]) if rule else None
  if module is None:
    return x
  made = module(x, train=train, mask=mask)
  if isinstance(made, tuple):
    made, more = made
    extras |= more
  return made
