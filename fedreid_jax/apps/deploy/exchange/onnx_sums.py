"""Translations of reductions, convolutions, pooling and products.

`TRANSLATIONS` is a table as in `onnx_elementwise`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedreid_jax.apps.deploy.exchange.onnx_graph import (
  Graph,
  Operand,
  Unsupported,
)

REDUCTIONS = {
  'reduce_max': 'ReduceMax',
  'reduce_min': 'ReduceMin',
  'reduce_sum': 'ReduceSum',
}


def _reduce(graph: Graph, equation: Any, operands: list) -> Operand:
  x = graph.whole(operands[0], equation.invars[0].aval.shape)
  axes = np.array(equation.params['axes'], np.int64)
  out = equation.outvars[0].aval
  operator = REDUCTIONS[equation.primitive.name]
  return graph.add(operator, [x, axes], out.shape, out.dtype, keepdims=0)


def _convolution(graph: Graph, equation: Any, operands: list) -> Operand:
  params, out = equation.params, equation.outvars[0].aval
  numbers = params['dimension_numbers']
  plain = params['batch_group_count'] == 1
  if not plain or any(n != 1 for n in params['lhs_dilation']):
    raise Unsupported('a transposed convolution')
  low, high = zip(*params['padding'], strict=True)
  if min(*low, *high) < 0:
    raise Unsupported('a convolution with negative padding')
  # ONNX has one layout, [images, channels, positions]; that of JAX is free.
  x, kernel = (
    graph.transpose(graph.whole(operand, variable.aval.shape), axes)
    for operand, variable, axes in zip(
      operands,
      equation.invars,
      (numbers.lhs_spec, numbers.rhs_spec),
      strict=True,
    )
  )
  result = graph.add(
    'Conv',
    [x, kernel],
    tuple(out.shape[axis] for axis in numbers.out_spec),
    out.dtype,
    strides=list(params['window_strides']),
    pads=[*low, *high],
    dilations=list(params['rhs_dilation']),
    group=params['feature_group_count'],
  )
  return graph.transpose(result, np.argsort(numbers.out_spec).tolist())


def _max_pool(graph: Graph, equation: Any, operands: list) -> Operand:
  params, out = equation.params, equation.outvars[0].aval
  window, strides = params['window_dimensions'], params['window_strides']
  rank = range(len(window))
  # ONNX pools all axes but the first two, so that the axes without a window are
  # moved there.
  spatial = [a for a in rank if window[a] != 1 or strides[a] != 1]
  others = [a for a in rank if a not in spatial]
  dilated = (*params['base_dilation'], *params['window_dilation'])
  padding = params['padding']
  if len(others) != 2 or any(n != 1 for n in dilated):
    raise Unsupported('a maximum over windows of another kind')
  if any(padding[axis] != (0, 0) for axis in others):
    raise Unsupported('a maximum over windows with padded images')
  axes = [*others, *spatial]
  low, high = zip(*(padding[axis] for axis in spatial), strict=True)
  x = graph.whole(operands[0], equation.invars[0].aval.shape)
  result = graph.add(
    'MaxPool',
    [graph.transpose(x, axes)],
    tuple(out.shape[axis] for axis in axes),
    out.dtype,
    kernel_shape=[window[axis] for axis in spatial],
    strides=[strides[axis] for axis in spatial],
    pads=[*low, *high],
  )
  return graph.transpose(result, np.argsort(axes).tolist())


def _product(graph: Graph, equation: Any, operands: list) -> Operand:
  out = equation.outvars[0].aval
  (left, right), (left_batch, right_batch) = equation.params[
    'dimension_numbers'
  ]
  a, b = (
    graph.whole(operand, variable.aval.shape)
    for operand, variable in zip(operands, equation.invars, strict=True)
  )
  if not left_batch and (left, right) == ((len(a.shape) - 1,), (0,)):
    return graph.add('MatMul', [a, b], out.shape, out.dtype)
  # Any other contraction is written in the notation of einsum, with equal
  # letters for contracted and for batch axes.
  letters = iter('abcdefghijklmnopqrstuvwxyz')
  first = [next(letters) for _ in a.shape]
  second = [next(letters) for _ in b.shape]
  for i, j in zip((*left_batch, *left), (*right_batch, *right), strict=True):
    second[j] = first[i]
  batch = [first[i] for i in left_batch]
  free = [c for i, c in enumerate(first) if i not in (*left_batch, *left)]
  free += [c for j, c in enumerate(second) if j not in (*right_batch, *right)]
  rule = f'{"".join(first)},{"".join(second)}->{"".join(batch + free)}'
  return graph.add('Einsum', [a, b], out.shape, out.dtype, equation=rule)


TRANSLATIONS: dict[str, Callable[..., Operand]] = {
  **dict.fromkeys(REDUCTIONS, _reduce),
  'conv_general_dilated': _convolution,
  'dot_general': _product,
  'reduce_window_max': _max_pool,
}
