"""Compression of uploads: few bits for each value, or few values.

With D_k = w_k - w^t of the trainable shared parameters the server receives
w^t + C(D_k). `compress.kind` selects C. For every leaf x of D_k, with
L = 2^(b-1) - 1 levels of b bits and u uniform on [0, 1),

  int    C(x) = sign(x) floor(|x| L / m + u) m / L, m = max |x|
  qsgd   the same with m = |x|_2
  topk   p = D_k + e_k; C(p) keeps the ratio d values of p of largest
         magnitude over all leaves, of d in all, and is zero elsewhere;
         e_k <- p - C(p)

Alistarh et al., QSGD: communication-efficient SGD via gradient quantization and
encoding, NeurIPS 2017 (int is the variant with the largest magnitude, whose
error is smaller for b = 8); Karimireddy et al., Error feedback fixes
SignSGD and other gradient compression schemes, ICML 2019 (topk). C of the first
two is unbiased. The client keeps the memory e_k; if an upload is lost, e_k is
the one from before the round.

`communication` of the results counts the bytes of the compressed message: b
bits for each value and a float32 for every leaf, or the values of topk with
their indices (or with a bit for each parameter, if that is shorter). Running
statistics, the messages of components and the broadcast are sent in full.

Deviations from the papers: the update of a round is compressed instead of a
gradient, and QSGD's codes have b bits each instead of an Elias code. Deviations
from released code: none is known.

The simulation keeps the values in float32, and computes the length of the
message that would be sent.
"""

import dataclasses
import math
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from fedreid_jax.core import quotients, trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Broadcast, Flat, Tree, Upload
from fedreid_jax.method.component import MODEL, Component, Transport

SCALE = 4  # bytes of the float32 that goes with the codes of a leaf
VALUE = 4  # bytes of a float32, or of an index
SMALLEST = 2.0**-126  # normal number of float32


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of compression."""

  kind: Annotated[
    Literal['int', 'qsgd', 'topk'],
    'random rounding by the largest magnitude or by the norm of a leaf, or the '
    'largest values with error feedback',
  ] = 'int'
  bits: Annotated[int, Range(2, 16), 'int, qsgd: bits of a value'] = 8
  ratio: Annotated[
    float, Range(1e-6, 1), 'topk: fraction of the values that are sent'
  ] = 0.01


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def size(content: str, tree: Tree) -> int:
    if content == MODEL:
      return num_bytes(options, tree)
    return trees.num_bytes(tree)

  if options.kind == 'topk':
    transport = Transport(up=_largest(options), init=_no_error, size=size)
  else:
    transport = Transport(up=_rounded(options), size=size)
  # Real sites send whole arrays, so that the saving is only simulated.
  return Component('compress', transport=transport, properties=('simulated',))


def num_bytes(options: Options, shared: Flat) -> int:
  """The bytes of the shared parameters in one upload."""
  params, running = trees.trainable(shared)
  sizes = [math.prod(x.shape) for x in params.values()]
  rest = sum(math.prod(x.shape) * x.dtype.itemsize for x in running.values())
  if not sizes:
    return rest
  if options.kind == 'topk':
    return rest + largest_bytes(sum(sizes), options.ratio)
  return rest + rounded_bytes(sizes, options.bits)


def _rounded(options: Options):
  """Returns `Transport.up` of int and qsgd."""
  by_norm = options.kind == 'qsgd'

  def up(
    state: Any, upload: Upload, received: Broadcast, key: Array
  ) -> tuple[Any, Upload]:
    changes = _changes(upload, received)
    sent = {
      name: rounded(
        jax.random.fold_in(key, place), changes[name], options.bits, by_norm
      )
      for place, name in enumerate(sorted(changes))
    }
    return state, _arrived(upload, received, sent)

  return up


def _largest(options: Options):
  """Returns `Transport.up` of topk, whose state is the memory e_k."""

  def up(
    error: Flat, upload: Upload, received: Broadcast, key: Array
  ) -> tuple[Flat, Upload]:
    del key
    changes = _changes(upload, received)
    wanted = {n: x + error[n] for n, x in changes.items()}
    sent = largest(wanted, options.ratio) if wanted else {}
    rest = trees.subtract(wanted, sent)
    return rest, _arrived(upload, received, sent)

  return up


def _no_error(shared: Flat) -> Flat:
  params, _ = trees.trainable(shared)
  return {name: jnp.zeros_like(x) for name, x in params.items()}


def _changes(upload: Upload, received: Broadcast) -> Flat:
  params, _ = trees.trainable(upload.shared)
  return {n: x - received.shared[n] for n, x in params.items()}


def _arrived(upload: Upload, received: Broadcast, sent: Flat) -> Upload:
  """The upload with the server's values plus the compressed update."""
  models = {n: received.shared[n] + x for n, x in sent.items()}
  return dataclasses.replace(upload, shared={**upload.shared, **models})


def levels(bits: int) -> int:
  """The largest code, one bit of which is its sign."""
  return 2 ** (bits - 1) - 1


def rounded(key: Array, values: Array, bits: int, by_norm: bool) -> Array:
  """Rounds values at random to a few levels, without bias."""
  most = levels(bits)
  size = jnp.abs(values)
  scale = size.max()
  if by_norm:
    # The scale of QSGD is the Euclidean norm. A square overflows from 1e19; a
    # power of two changes no digit.
    _, exponent = jnp.frexp(scale)
    near_one = jnp.ldexp(values, -exponent)
    scale = jnp.ldexp(jnp.sqrt((near_one**2).sum()), exponent)
  # A leaf of zeros must not become 0 / 0, and the inverse of a denormal number
  # may be infinite.
  unit = jnp.where(scale < SMALLEST, 1.0, scale)
  share = quotients.divide(size, unit)
  codes = jnp.floor(share * most + jax.random.uniform(key, values.shape))
  # The sum of the largest code and of almost one may round to the next code.
  return jnp.sign(values) * jnp.minimum(codes, most) * (scale / most)


def rounded_bytes(sizes: list[int], bits: int) -> int:
  """The bytes of the codes and the scales of leaves of these sizes."""
  return sum(math.ceil(bits * size / 8) + SCALE for size in sizes)


def number_kept(size: int, ratio: float) -> int:
  """Returns how many of `size` values are sent, at least one."""
  # Without the margin the rounding of the product, 0.07 * 100 =
  # 7.000000000000001, would send one value more.
  return max(1, math.ceil(ratio * size - 1e-9))


def largest(leaves: Flat, ratio: float) -> Flat:
  """Keeps the values of largest magnitude over all leaves; others become 0."""
  # A fixed order, because the first of equal magnitudes are kept.
  names = sorted(leaves)
  flat = jnp.concatenate([leaves[name].reshape(-1) for name in names])
  _, kept = jax.lax.top_k(jnp.abs(flat), number_kept(flat.size, ratio))
  sent = jnp.zeros_like(flat).at[kept].set(flat[kept])
  found: Flat = {}
  for name in names:
    part, sent = sent[: leaves[name].size], sent[leaves[name].size :]
    found[name] = part.reshape(leaves[name].shape)
  return found


def largest_bytes(size: int, ratio: float) -> int:
  """The bytes of the kept values and of their positions."""
  kept = number_kept(size, ratio)
  # Positions are indices, or one bit for each value if that is shorter.
  return VALUE * kept + min(VALUE * kept, math.ceil(size / 8))
