"""Translations of primitives that move elements.

`TRANSLATIONS` is a table as in `onnx_elementwise`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedreid_jax.apps.deploy.exchange.onnx_graph import (
  END,
  Graph,
  Operand,
  Unsupported,
)


def _broadcast(graph: Graph, equation: Any, operands: list) -> Operand:
  (x,) = operands
  shape = [1] * len(equation.params['shape'])
  axes = equation.params['broadcast_dimensions']
  for axis, size in zip(axes, x.shape, strict=True):
    shape[axis] = size
  return graph.reshape(x, tuple(shape))


def _reshape(graph: Graph, equation: Any, operands: list) -> Operand:
  x = graph.whole(operands[0], equation.invars[0].aval.shape)
  return graph.reshape(x, equation.outvars[0].aval.shape)


def _transpose(graph: Graph, equation: Any, operands: list) -> Operand:
  return graph.transpose(operands[0], equation.params['permutation'])


def _sliced(
  graph: Graph, x: Operand, out: Any, starts: Any, ends: Any, steps: Any
) -> Operand:
  axes = range(len(out.shape))
  limits = [
    np.array(values, np.int64) for values in (starts, ends, axes, steps)
  ]
  return graph.add('Slice', [x, *limits], out.shape, out.dtype)


def _slice(graph: Graph, equation: Any, operands: list) -> Operand:
  source, out = equation.invars[0].aval, equation.outvars[0].aval
  starts = equation.params['start_indices']
  limits = equation.params['limit_indices']
  # The length of a whole axis may be symbolic, and ONNX allows larger ends.
  ends = [
    END if limit == size else limit
    for limit, size in zip(limits, source.shape, strict=True)
  ]
  steps = equation.params['strides'] or (1,) * len(ends)
  x = graph.whole(operands[0], source.shape)
  return _sliced(graph, x, out, starts, ends, steps)


def _gather(graph: Graph, equation: Any, operands: list) -> Operand:
  """Translates a gather at constant places, the result of indexing an array."""
  # JAX traces x[:, 1:3] and x[:, ::2] as gathers, too, if an axis is symbolic.
  source, out = equation.invars[0].aval, equation.outvars[0].aval
  numbers = equation.params['dimension_numbers']
  sizes, place = equation.params['slice_sizes'], operands[1]
  axes, collapsed = numbers.start_index_map, numbers.collapsed_slice_dims
  if not isinstance(place, np.ndarray) or numbers.operand_batching_dims:
    raise Unsupported('a gather at computed places')
  limits = [source.shape[axis] - sizes[axis] for axis in axes]
  # ONNX counts negative places from the end, and JAX may clamp or fill.
  if (place < 0).any() or (place > np.array(limits)).any():
    raise Unsupported('a gather outside of an array')
  x = graph.whole(operands[0], source.shape)
  if place.ndim == 1:  # one block
    starts, ends = [0] * len(sizes), [END] * len(sizes)
    for axis, start in zip(axes, place.tolist(), strict=True):
      starts[axis], ends[axis] = start, start + sizes[axis]
    block = jax.ShapeDtypeStruct(sizes, out.dtype)
    x = _sliced(graph, x, block, starts, ends, [1] * len(sizes))
    return graph.reshape(x, out.shape)
  others = [axis for axis in range(len(sizes)) if axis not in collapsed]
  if {*axes} != {*collapsed} or any(
    sizes[axis] != source.shape[axis] for axis in others
  ):
    raise Unsupported('a gather of blocks')
  # One axis of all places, then the axes that are taken whole.
  lengths = [source.shape[axis] for axis in axes]
  rest = tuple(source.shape[axis] for axis in others)
  rows = graph.reshape(
    graph.transpose(x, [*axes, *others]), (math.prod(lengths), *rest)
  )
  flat = np.asarray(
    np.ravel_multi_index(tuple(np.moveaxis(place, -1, 0)), lengths), np.int64
  )
  found = graph.add(
    'Gather',
    [rows, flat],
    (*flat.shape, *rest),
    out.dtype,
    axis=0,
  )
  offset = numbers.offset_dims
  free = [axis for axis in range(len(out.shape)) if axis not in offset]
  order = {axis: k for k, axis in enumerate([*free, *offset])}
  return graph.transpose(found, [order[axis] for axis in range(len(order))])


def _reverse(graph: Graph, equation: Any, operands: list) -> Operand:
  out, axes = equation.outvars[0].aval, equation.params['dimensions']
  rank = range(len(out.shape))
  # A slice backwards from the last element; ONNX clamps the end.
  starts = [-1 if axis in axes else 0 for axis in rank]
  ends = [-END if axis in axes else END for axis in rank]
  steps = [-1 if axis in axes else 1 for axis in rank]
  x = graph.whole(operands[0], out.shape)
  return _sliced(graph, x, out, starts, ends, steps)


def _concatenate(graph: Graph, equation: Any, operands: list) -> Operand:
  out = equation.outvars[0].aval
  parts = [
    graph.whole(x, variable.aval.shape)
    for x, variable in zip(operands, equation.invars, strict=True)
  ]
  axis = equation.params['dimension']
  return graph.add('Concat', parts, out.shape, out.dtype, axis=axis)


def _stack(graph: Graph, equation: Any, operands: list) -> Operand:
  out, axis = equation.outvars[0].aval, equation.params['axis']
  parts = [
    graph.reshape(
      graph.whole(x, variable.aval.shape),
      (*variable.aval.shape[:axis], 1, *variable.aval.shape[axis:]),
    )
    for x, variable in zip(operands, equation.invars, strict=True)
  ]
  return graph.add('Concat', parts, out.shape, out.dtype, axis=axis)


def _pad(graph: Graph, equation: Any, operands: list) -> Operand:
  out, config = equation.outvars[0].aval, equation.params['padding_config']
  low, high, inner = zip(*config, strict=True)
  if any(inner) or min(*low, *high) < 0:
    raise Unsupported('padding between elements, or a crop')
  x = graph.whole(operands[0], equation.invars[0].aval.shape)
  pads = np.array([*low, *high], np.int64)
  return graph.add('Pad', [x, pads, operands[1]], out.shape, out.dtype)


TRANSLATIONS: dict[str, Callable[..., Operand]] = {
  'broadcast_in_dim': _broadcast,
  'concatenate': _concatenate,
  'expand_dims': _reshape,
  'gather': _gather,
  'pad': _pad,
  'reshape': _reshape,
  'rev': _reverse,
  'slice': _slice,
  'squeeze': _reshape,
  'stack': _stack,
  'transpose': _transpose,
}
