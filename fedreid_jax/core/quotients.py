"""Quotients whose bits do not depend on the program around them.

XLA replaces `x / c` for a broadcast `c` by `x * (1 / c)` in some programs and
not in others. The program of a device varies with the number of its clients,
and with the quotient the last bits of a run would vary with the number of
devices. Here the product is written out.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Float, Num

from fedreid_jax.core.types import Array


def divide(
  x: Num[Array, '*shape'], c: Num[Array, '...']
) -> Float[Array, '*shape']:
  """Returns `x * (1 / c)`; `c` is broadcast to the shape of `x`."""
  return x * (1.0 / c)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def softmax(
  x: Float[Array, '*shape'], axis: int = -1
) -> Float[Array, '*shape']:
  """Returns exponentials divided by their sum along an axis."""
  large = x.max(axis, keepdims=True)
  # A row of minus infinity is nan, as in `jax.nn.softmax`.
  powers = jnp.exp(x - jax.lax.stop_gradient(large))
  return divide(powers, powers.sum(axis, keepdims=True))


# Differentiation of the formula would store two more arrays as large.
@softmax.defjvp
def _softmax_jvp(
  axis: int, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
  y = softmax(primals[0], axis)
  dy = y * tangents[0]
  return y, dy - y * dy.sum(axis, keepdims=True)
