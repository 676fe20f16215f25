"""Quotients that XLA does not rewrite.

XLA replaces `x / c` for a broadcast `c` by `x * (1 / c)` in some programs and
not in others. The program of a device varies with the number of its clients,
and with the quotient the last bits of a run would vary with the number of
devices. Here the product is written out. Quotients by constants are products in
all programs.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Float, Num, Shaped

from fedreid_jax.core.types import Array


def divide(
  x: Shaped[Array, '*shape'], c: Num[Array, '...']
) -> Float[Array, '*shape']:
  """Returns `x * (1 / c)`; `c` is broadcast to the shape of `x`.

  The inverse is float32. It is finite unless `c` is zero or a denormal number.
  """
  return x * (1.0 / jnp.asarray(c, jnp.float32))


def softmax(
  x: Float[Array, '*shape'], axis: int = -1
) -> Float[Array, '*shape']:
  """Returns exponentials divided by their sum along an axis.

  A row of minus infinity is nan, as in `jax.nn.softmax`.
  """
  return cast(Array, _softmax(x, axis))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(x: Array, axis: int) -> Array:
  powers = jnp.exp(x - x.max(axis, keepdims=True))
  return divide(powers, powers.sum(axis, keepdims=True))


# Differentiation of the formula would store two more arrays as large.
@_softmax.defjvp
def _softmax_jvp(
  axis: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
  y = softmax(primals[0], axis)
  dy = y * tangents[0]
  return y, dy - y * dy.sum(axis, keepdims=True)
