"""Sums over the clients of a streamed round, and what is kept of uploads."""

from flax import struct

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat, Tree


@struct.dataclass
class Totals:
  """Sums over the clients so far.

  Attributes:
    limits: limits of the changes of each parameter, constants of a round.
    by_size: sums of changes weighted by number of images, by parameter.
    own: sums weighted by the rule of a component, by parameter.
    peaks: largest exponents of `own`, by parameter, of an exponential rule.
    drawn: position of the client of `first` in the order of sampling, int32.
    first: running statistics of the client sampled first.
    messages: sums of messages, by name of the component.
  """

  limits: Flat
  by_size: Flat
  own: Flat
  peaks: Flat
  drawn: Array
  first: Flat
  messages: dict[str, Tree]


@struct.dataclass
class Streamed:
  """The uploads of a streamed round.

  Attributes:
    uploads: without shared parameters and summed messages, `[K, ...]`; `finite`
      is whether the upload was added.
    raw: `Aggregation.raw` of each upload, `[K]` or by parameter.
    far: whether an upload is finite but was left out because a value is out of
      range, bool `[K]`.
    totals: sums over all uploads.
  """

  uploads: types.Upload
  raw: Tree
  far: Array
  totals: Totals


def of_leaf(raw: Tree, name: str) -> Array:
  """Returns the raw weight of a parameter, `Aggregation.raw`."""
  return raw[name] if isinstance(raw, dict) else raw
