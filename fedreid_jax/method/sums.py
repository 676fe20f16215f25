"""Rules of the server: an upload is summed or gathered.

With the change D_k of the shared parameters of client k, a `Sum` gives

  w + (1 / d) sum_k a_k D_k,

where the weight a_k depends on one upload and the divisor d on sums. An upload
is added when its client has trained, and is not kept; secure aggregation can
also add it. A `Gather` needs all uploads of a round at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core import trees
from fedreid_jax.core.types import Array, Tree
from fedreid_jax.method import contexts
from fedreid_jax.method.contexts import Combine, State, Weigh, Weight

# In a sum in fixed point the change of a parameter may be so many powers of two
# larger than the largest parameter of its array. The headroom of running
# statistics is larger, because their initial values do not bound them.
HEADROOM, HEADROOM_STATISTICS = 6, 16
# `(numbers of images of the K largest clients, [K]) -> limit` of the sum of the
# weights of a cohort.
Bound = Callable[[np.ndarray], float]


def by_count(sizes: np.ndarray) -> float:
  """Returns `K`, the `Bound` of weights that are at most 1 each."""
  return float(len(sizes))


def by_share(sizes: np.ndarray) -> float:
  """Returns 1, the `Bound` of shares, whose sum over all clients is 1."""
  del sizes
  return 1.0


def by_size(sizes: np.ndarray) -> float:
  """Returns the `Bound` of weights that are at most the number of images."""
  return float(sizes.sum())


class Term(NamedTuple):
  """The term of one upload in a sum, weight times values.

  Attributes:
    weight: weight divided by the unit of the sum, float32. The units of fixed
      point and of a `Summation` make its absolute value at most 1.
    values: values of any shape, float32.
  """

  weight: Array
  values: Array


class Weighted(NamedTuple):
  """Terms of all uploads that are to be added.

  Attributes:
    weight: weights with absolute values of at most 1, float32 `[K]`.
    values: values of each upload, float32 `[K, ...]`.
    limit: largest absolute value; larger values are clipped to it.
    noise: standard deviation of discrete Gaussian noise on the sum, None for no
      noise.
  """

  weight: Array
  values: Array
  limit: float
  noise: Array | None = None


class Divisor(NamedTuple):
  """The number by which a rule divides its sum, from sums over the uploads.

  Attributes:
    numbers: `(message, UploadCtx) -> (weight, value)` of one upload by name,
      not negative. The number that is added is their product. The sum of the
      weights over a cohort is within the `bound` of the rule.
    limits: by name, the limit of the values, a power of two; in deterministic
      mode a client that exceeds it is left out.
    of: `(sums of the numbers) -> divisor`.
  """

  numbers: Callable[
    [Any, contexts.UploadCtx], dict[str, tuple[Array, Array | float]]
  ]
  limits: Mapping[str, float]
  of: Callable[[dict[str, Array]], Array | float]


class Sum(NamedTuple):
  """A rule for the model that needs only sums over the clients.

  Attributes:
    weight: `(message, UploadCtx) -> a` of one upload, not negative: a number
      for all parameters, or a dict by name, in which absent parameters are
      weighted by number of images.
    bound: limit of the sum of the weights over a cohort.
    divisor: divisor of the sum, by default the sum of the weights. The model
      stays as it is if the divisor is not above zero and finite, or the weights
      exceed their bound.
    fallback: whether the mean by number of images replaces such a sum. It takes
      a second sum of the size of the model.
    noise: `(State of the server hooks) -> standard deviation` of the noise that
      a `Summation` adds to the sum; without a `Summation` the component adds
      the noise itself.
  """

  weight: Weight
  bound: Bound
  divisor: Divisor | None = None
  fallback: bool = False
  noise: Callable[[State], Array] | None = None


class Gather(NamedTuple):
  """A rule for the model that needs all uploads of a round.

  Attributes:
    weights: weights of the weighted mean, by default by number of images.
    combine: `(models [G, ...], AggregationCtx) -> models`, which replaces the
      weighted mean.
    by_coordinate: whether `combine` computes every value of a model from the
      same value of the uploads. Then every device combines a part of the
      values, except those of arrays with few of them.
  """

  weights: Weigh | None = None
  combine: Combine | None = None
  by_coordinate: bool = False


def _images(message: Any, ctx: contexts.UploadCtx) -> Array:
  del message
  return ctx.num_examples


def _one(message: Any, ctx: contexts.UploadCtx) -> Array:
  del message, ctx
  return jnp.float32(1.0)


BY_IMAGES = Sum(_images, by_size)  # the rule of a method that has no other rule
UNIFORM = Sum(_one, by_count)  # the same weight for every upload


class TermOf(Protocol):
  """Returns the term of the message of one client."""

  def __call__(
    self, state: Any, message: Any, ctx: contexts.ReceiveCtx, /
  ) -> tuple[Array, Tree]:
    """Returns (weight, values); `ctx.index` is the index of this client."""
    ...


class FinishSum(Protocol):
  """Updates the state with the sums over the valid uploads of a round."""

  def __call__(
    self, state: Any, sums: Any, valid: Array, ctx: contexts.ReceiveCtx, /
  ) -> Any:
    """Returns the state; `valid` is bool `[K]`."""
    ...


class MessageSum(NamedTuple):
  """A `ServerHooks.receive` that needs only weighted sums of the messages.

  Messages are added client by client and not kept, so that a message may be as
  large as the model.

  Attributes:
    term: `(State, message, ReceiveCtx) -> (weight, values)` of one client.
    finish: `(State, sums of weight * value, valid bool [K], ReceiveCtx) ->
      State`.
    bound: limit of the sum of the weights of `term` over a cohort.
    limit: limit of the absolute values, a power of two; in deterministic mode
      a client that exceeds it is left out.
    noise: `(State) -> standard deviation` of the noise that a `Summation` adds
      to the sums; without a `Summation` the component adds the noise itself.
  """

  term: TermOf
  finish: FinishSum
  bound: Bound
  limit: float
  noise: Callable[[Any], Array] | None = None

  def __call__(
    self, state: Any, messages: Any, valid: Array, ctx: contexts.ReceiveCtx, /
  ) -> Any:
    """Receives stacked messages, as a `Receive`, in a round that gathers."""

    def term(message: Any, index: Array) -> tuple[Array, Tree]:
      return self.term(state, message, contexts.ReceiveCtx(index))

    def add(sums: Tree, row: tuple[Any, Array, Array]) -> tuple[Tree, None]:
      message, index, counts = row
      weight, values = term(message, index)

      def one(total: Array, value: Array) -> Array:
        # Rows that do not count may have values that are not finite.
        return total + jnp.where(counts, weight * value, 0.0)

      return jax.tree.map(one, sums, values), None

    # In the order of rows: the zeros of empty lanes at the end change no bit.
    rows = messages, ctx.index, valid
    first = trees.rows((messages, ctx.index), 0)
    zeros = trees.zeros(jax.eval_shape(term, *first)[1])
    sums, _ = jax.lax.scan(add, zeros, rows)
    return self.finish(state, sums, valid, ctx)
