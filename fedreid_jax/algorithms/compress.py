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
"""

import dataclasses
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms.statistics import compression
from fedreid_jax.core import param_filter, trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Broadcast, Flat, Upload
from fedreid_jax.method.component import Component, ComponentInfo, Transport


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

  def size(shared: Flat) -> int:
    return num_bytes(options, shared)

  if options.kind == 'topk':
    transport = Transport(init=_no_error, up_with=_largest(options), size=size)
  else:
    transport = Transport(up=_rounded(options), size=size)
  # Real sites send whole arrays, so that the saving is only simulated.
  info = ComponentInfo(properties=('simulated',))
  return Component('compress', transport=transport, info=info)


def num_bytes(options: Options, shared: Flat) -> int:
  """Returns the bytes of the shared parameters in one upload."""
  params, running = param_filter.trainable(shared)
  sizes = [math.prod(x.shape) for x in params.values()]
  rest = sum(math.prod(x.shape) * x.dtype.itemsize for x in running.values())
  if not sizes:
    return rest
  if options.kind == 'topk':
    return rest + compression.largest_bytes(sum(sizes), options.ratio)
  return rest + compression.rounded_bytes(sizes, options.bits)


def _rounded(options: Options):
  """Returns `Transport.up` of int and qsgd."""
  by_norm = options.kind == 'qsgd'

  def up(upload: Upload, received: Broadcast, key: Array) -> Upload:
    changes = _changes(upload, received)
    sent = {
      name: compression.rounded(
        jax.random.fold_in(key, place), changes[name], options.bits, by_norm
      )
      for place, name in enumerate(sorted(changes))
    }
    return _arrived(upload, received, sent)

  return up


def _largest(options: Options):
  """Returns `Transport.up_with` of topk, whose state is the memory e_k."""

  def up(
    error: Flat, upload: Upload, received: Broadcast, key: Array
  ) -> tuple[Flat, Upload]:
    del key
    changes = _changes(upload, received)
    wanted = {n: x + error[n] for n, x in changes.items()}
    sent = compression.largest(wanted, options.ratio) if wanted else {}
    rest = trees.subtract(wanted, sent)
    return rest, _arrived(upload, received, sent)

  return up


def _no_error(shared: Flat) -> Flat:
  params, _ = param_filter.trainable(shared)
  return {name: jnp.zeros_like(x) for name, x in params.items()}


def _changes(upload: Upload, received: Broadcast) -> Flat:
  params, _ = param_filter.trainable(upload.shared)
  return {n: x - received.shared[n] for n, x in params.items()}


def _arrived(upload: Upload, received: Broadcast, sent: Flat) -> Upload:
  """Returns the upload with the server's values plus the compressed update."""
  models = {n: received.shared[n] + x for n, x in sent.items()}
  return dataclasses.replace(upload, shared={**upload.shared, **models})
