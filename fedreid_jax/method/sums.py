"""Sums over the clients: of messages, and of numbers that divide a mean."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Tree
from fedreid_jax.method import contexts

# `(numbers of images of the K largest clients, [K]) -> limit` of the sum of the
# weights of a cohort.
Bound = Callable[[np.ndarray], float]


def by_count(sizes: np.ndarray) -> float:
  """A `Bound` of weights that are at most 1."""
  return float(len(sizes))


def by_share(sizes: np.ndarray) -> float:
  """A `Bound` of shares, whose sum over all clients is 1."""
  del sizes
  return 1.0


def by_size(sizes: np.ndarray) -> float:
  """A `Bound` of weights that are at most the number of images."""
  return float(sizes.sum())


class Weighted(NamedTuple):
  """Values of all uploads that are to be added, each with its weight.

  Attributes:
    weight: absolute values at most 1, float32 `[K]`.
    values: float32 `[K, ...]`.
    limit: largest absolute value; larger ones are clipped to it.
    noise: standard deviation of discrete Gaussian noise on the sum, None for no
      noise.
  """

  weight: Array
  values: Array
  limit: float
  noise: Array | None = None


class Divisor(NamedTuple):
  """The number by which a rule divides its sum, from sums over the uploads.

  The weights of the rule are `Aggregation.raw` over this number.

  Attributes:
    numbers: `(message, UploadCtx) -> numbers` of one upload by name, not
      negative.
    bounds: as `Aggregation.bound`, of each number.
    of: `(sums of the numbers) -> divisor`; the model stays if it is not above
      zero and finite.
  """

  numbers: Callable[[Tree, contexts.UploadCtx], dict[str, Array]]
  bounds: dict[str, Bound]
  of: Callable[[dict[str, Array]], Array | float]


class Term(Protocol):
  """Returns the term of one client in the sums of a component."""

  def __call__(
    self, state: Any, message: Tree, ctx: contexts.ReceiveCtx, /
  ) -> tuple[Array, Tree]:
    """Returns (weight, values); `ctx.index` is that of the one client."""
    ...


class FinishSum(Protocol):
  """Updates the state with the sums over the valid uploads of a round."""

  def __call__(
    self, state: Any, sums: Tree, valid: Array, ctx: contexts.ReceiveCtx, /
  ) -> Any:
    """Returns the state; `valid` is bool `[K]`."""
    ...


class Summed(NamedTuple):
  """A `ServerHooks.receive` that needs only weighted sums of the messages.

  A streamed round adds the messages client by client and does not keep them,
  so that a message may be as large as the model.

  Attributes:
    term: `(State, message, ReceiveCtx) -> (weight, values)` of one client.
    finish: `(State, sums of weight * value, valid bool [K], ReceiveCtx) ->
      State`.
    bound: as `Aggregation.bound`, of the weights of `term`.
    limit: limit of the absolute values, a power of two; in deterministic mode
      a streamed round leaves out a client that exceeds it.
    noise: `(State) -> standard deviation` of the noise on the sums that a
      `Summation` adds; without a `Summation` the component adds it itself.
  """

  term: Term
  finish: FinishSum
  bound: Bound
  limit: float
  noise: Callable[[Any], Array] | None = None

  def __call__(
    self,
    state: Any,
    messages: Tree,
    valid: Array,
    ctx: contexts.ReceiveCtx,
    /,
  ) -> Any:
    """Receives the stacked messages of a round, as a `Receive`."""

    def term(message: Tree, index: Array) -> tuple[Array, Tree]:
      return self.term(state, message, contexts.ReceiveCtx(index))

    def add(sums: Tree, row: tuple[Tree, Array, Array]) -> tuple[Tree, None]:
      message, index, counts = row
      weight, values = term(message, index)

      def one(total: Array, value: Array) -> Array:
        return total + jnp.where(counts, weight * value, 0.0)

      return jax.tree.map(one, sums, values), None

    # In order: zeros of empty lanes at the end change no bit.
    rows = messages, ctx.index, valid
    first = trees.rows((messages, ctx.index), 0)
    zeros = trees.zeros(jax.eval_shape(term, *first)[1])
    sums, _ = jax.lax.scan(add, zeros, rows)
    return self.finish(state, sums, valid, ctx)
