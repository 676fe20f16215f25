"""Embeddings as ONNX programs.

The traced program is translated equation by equation with the builders of the
package `onnx`: calls are inlined, equations of constants are computed, and the
rest is translated by `TRANSLATIONS`, which has a function
`(graph, equation, operands) -> result` for each of JAX's primitives, or a list
of results for a primitive of several.

Maintained converters did not work: jax2onnx 0.17.1 excludes the version of
Orbax that this package needs, and with JAX 0.10 it writes the max-pooling of a
ResNet with four spatial axes, which ONNX Runtime refuses. tf2onnx cannot read
the StableHLO of `jax2tf`.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from fedreid_jax.apps.deploy.embedding import BATCH, IMAGES, OUTPUT, Embedding
from fedreid_jax.apps.deploy.onnx_graph import (
  END,
  OPSET,
  Graph,
  Operand,
  Unsupported,
  Value,
)
from fedreid_jax.core import plugins, programs
from fedreid_jax.models import flops
from fedreid_jax.version import __version__

REDUCTIONS = {
  'reduce_max': 'ReduceMax',
  'reduce_min': 'ReduceMin',
  'reduce_sum': 'ReduceSum',
}
# Operators on windows and their attributes. Zeros around an image count in the
# means, since they are elements of the sum.
POOLS: dict[str, tuple[str, dict[str, int]]] = {
  'reduce_window_max': ('MaxPool', {}),
  'reduce_window_sum': ('AveragePool', {'count_include_pad': 1}),
}
SUFFIX = '.onnx'
IR_VERSION = 8  # of opset 18; later ones need later runtimes
# Primitives that run an inner program once.
CALLS = {
  'jit': 'jaxpr',
  'pjit': 'jaxpr',
  'closed_call': 'call_jaxpr',
  'remat2': 'jaxpr',
  'checkpoint': 'jaxpr',
  'custom_jvp_call': 'call_jaxpr',
  'custom_vjp_call': 'call_jaxpr',
}
ELEMENTWISE = {
  'abs': 'Abs',
  'add': 'Add',
  'add_any': 'Add',
  'and': 'And',
  'div': 'Div',
  'eq': 'Equal',
  'erf': 'Erf',
  'exp': 'Exp',
  'ge': 'GreaterOrEqual',
  'gt': 'Greater',
  'log': 'Log',
  'logistic': 'Sigmoid',
  'lt': 'Less',
  'max': 'Max',
  'min': 'Min',
  'mul': 'Mul',
  'neg': 'Neg',
  'not': 'Not',
  'or': 'Or',
  'pow': 'Pow',
  'sign': 'Sign',
  'sqrt': 'Sqrt',
  'sub': 'Sub',
  'tanh': 'Tanh',
}
LOGICAL = ('and', 'not', 'or')


def encode(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """The content of a file.

  Raises:
    ConfigError: without `onnx`, or for an operation without a translation.
  """
  onnx = plugins.load_extra(
    'onnx', '--format=onnx', plugins.install_command('export')
  )
  batch = embedding.inputs[IMAGES].shape[0]
  graph = Graph(batch, IMAGES)
  inputs = [
    Value(name, one.shape, one.dtype) for name, one in embedding.inputs.items()
  ]
  leaves = [np.asarray(x) for x in embedding.variables.values()]
  program = embedding.program
  (result,) = _translate(graph, program, [*leaves, *inputs])
  graph.name(graph.whole(result, embedding.output.shape), OUTPUT)
  nodes, constants = graph.needed(OUTPUT)

  def described(name: str, one: Any):
    shape = [BATCH if export.is_symbolic_dim(n) else n for n in one.shape]
    kind = graph.type_of(one.dtype)
    return onnx.helper.make_tensor_value_info(name, kind, shape)

  model = onnx.helper.make_model(
    onnx.helper.make_graph(
      nodes,
      'embedding',
      [described(*one) for one in embedding.inputs.items()],
      [described(OUTPUT, embedding.output)],
      constants,
    ),
    opset_imports=[onnx.helper.make_opsetid('', OPSET)],
    ir_version=IR_VERSION,
    producer_name='fedreid_jax',
    producer_version=__version__,
    doc_string=about['summary'],
  )
  onnx.helper.set_model_props(
    model,
    {
      key: value if isinstance(value, str) else json.dumps(value)
      for key, value in about.items()
    },
  )
  onnx.checker.check_model(model, full_check=True)
  # Equal models give equal bytes.
  return model.SerializeToString(deterministic=True)


def reader(path: Path) -> Callable[..., np.ndarray]:
  """A function that runs a file in ONNX Runtime on the CPU.

  Raises:
    ConfigError: without ONNX Runtime.
  """
  runtime = plugins.load_extra(
    'onnxruntime', '--format=onnx', plugins.install_command('export')
  )
  session = runtime.InferenceSession(
    path.read_bytes(), providers=['CPUExecutionProvider']
  )
  names = [one.name for one in session.get_inputs()]

  def run(*inputs: np.ndarray) -> np.ndarray:
    (found,) = session.run([OUTPUT], dict(zip(names, inputs, strict=True)))
    return found

  return run


def _translate(
  graph: Graph, program: programs.Program, inputs: Sequence[Operand]
) -> list[Operand]:
  jaxpr = program.jaxpr
  known: dict[Any, Operand] = dict(zip(jaxpr.invars, inputs, strict=True))
  consts = [np.asarray(value) for value in program.consts]
  known |= zip(jaxpr.constvars, consts, strict=True)

  def read(atom: Any) -> Operand:
    if not isinstance(atom, programs.Literal):
      return known[atom]
    kind: Any = atom.aval
    return np.asarray(atom.val, kind.dtype)

  for equation in jaxpr.eqns:
    operands = [read(atom) for atom in equation.invars]
    known |= zip(
      equation.outvars, _equation(graph, equation, operands), strict=True
    )
  return [read(atom) for atom in jaxpr.outvars]


def _equation(
  graph: Graph, equation: Any, operands: list[Operand]
) -> Sequence[Operand]:
  name, params = equation.primitive.name, equation.params
  if name in CALLS:
    inner = programs.closed(params[CALLS[name]])
    return _translate(graph, inner, operands)
  if name == 'platform_index':
    # Only the conditional below reads the index.
    return [np.zeros((), np.int32)]
  # ONNX has no platforms: the branch for all other platforms is used.
  branch = flops.fallback(equation)
  if branch is not None:
    return _translate(graph, branch, operands[1:])
  # Equations of constants, such as masks from iota, are computed by JAX.
  if _is_constant(equation, operands):
    found = equation.primitive.bind(*operands, **params)
    found = found if equation.primitive.multiple_results else [found]
    return [np.asarray(one) for one in found]
  if name in _ON_WHOLE:
    operands = [
      graph.whole(x, variable.aval.shape)
      for x, variable in zip(operands, equation.invars, strict=True)
    ]
  if name not in TRANSLATIONS:
    raise Unsupported(f'it has the operation {name!r}')
  found: Any = TRANSLATIONS[name](graph, equation, operands)
  return found if equation.primitive.multiple_results else [found]


def _is_constant(equation: Any, operands: list[Operand]) -> bool:
  """Whether the results of an equation can be computed now."""
  atoms = (*equation.invars, *equation.outvars)
  # A constant may be stored with axes of length 1, and JAX needs whole ones.
  return all(
    isinstance(one, np.ndarray) and one.shape == atom.aval.shape
    for one, atom in zip(operands, equation.invars, strict=True)
  ) and not any(
    export.is_symbolic_dim(n) for atom in atoms for n in atom.aval.shape
  )


def _reduce(graph: Graph, equation: Any, operands: list) -> Operand:
  axes = np.array(equation.params['axes'], np.int64)
  out = equation.outvars[0].aval
  operator = REDUCTIONS[equation.primitive.name]
  return graph.add(
    operator, [*operands, axes], out.shape, out.dtype, keepdims=0
  )


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
  x, kernel = operands
  result = graph.add(
    'Conv',
    [
      graph.transpose(x, numbers.lhs_spec),
      graph.transpose(kernel, numbers.rhs_spec),
    ],
    tuple(out.shape[axis] for axis in numbers.out_spec),
    out.dtype,
    strides=list(params['window_strides']),
    pads=[*low, *high],
    dilations=list(params['rhs_dilation']),
    group=params['feature_group_count'],
  )
  return graph.transpose(result, np.argsort(numbers.out_spec).tolist())


def _pool(graph: Graph, equation: Any, operands: list) -> Operand:
  """A maximum or a sum over windows."""
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
    raise Unsupported('windows of another kind')
  if any(padding[axis] != (0, 0) for axis in others):
    raise Unsupported('windows with padded images')
  axes = [*others, *spatial]
  low, high = zip(*(padding[axis] for axis in spatial), strict=True)
  operator, more = POOLS[equation.primitive.name]
  result = graph.add(
    operator,
    [graph.transpose(operands[0], axes)],
    tuple(out.shape[axis] for axis in axes),
    out.dtype,
    kernel_shape=[window[axis] for axis in spatial],
    strides=[strides[axis] for axis in spatial],
    pads=[*low, *high],
    **more,
  )
  if more:  # ONNX has means of windows only
    count = np.array(math.prod(window), out.dtype)
    result = graph.elementwise('Mul', [result, count], out.dtype)
  return graph.transpose(result, np.argsort(axes).tolist())


def _product(graph: Graph, equation: Any, operands: list) -> Operand:
  out = equation.outvars[0].aval
  (left, right), (left_batch, right_batch) = equation.params[
    'dimension_numbers'
  ]
  a, b = operands
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


def _broadcast(graph: Graph, equation: Any, operands: list) -> Operand:
  (x,) = operands
  shape = [1] * len(equation.params['shape'])
  axes = equation.params['broadcast_dimensions']
  for axis, size in zip(axes, x.shape, strict=True):
    shape[axis] = size
  return graph.reshape(x, tuple(shape))


def _reshape(graph: Graph, equation: Any, operands: list) -> Operand:
  return graph.reshape(operands[0], equation.outvars[0].aval.shape)


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
  return _sliced(graph, operands[0], out, starts, ends, steps)


def _gather(graph: Graph, equation: Any, operands: list) -> Operand:
  """A gather at constant places, the result of indexing an array."""
  # JAX traces x[:, 1:3] and x[:, ::2] as gathers, too, if an axis is symbolic.
  source, out = equation.invars[0].aval, equation.outvars[0].aval
  numbers = equation.params['dimension_numbers']
  sizes, (x, place) = equation.params['slice_sizes'], operands
  axes, collapsed = numbers.start_index_map, numbers.collapsed_slice_dims
  if not isinstance(place, np.ndarray) or numbers.operand_batching_dims:
    raise Unsupported('a gather at computed places')
  limits = [source.shape[axis] - sizes[axis] for axis in axes]
  # ONNX counts negative places from the end, and JAX may clamp or fill.
  if (place < 0).any() or (place > np.array(limits)).any():
    raise Unsupported('a gather outside of an array')
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
  shape = *flat.shape, *rest
  found = graph.add('Gather', [rows, flat], shape, out.dtype, axis=0)
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
  return _sliced(graph, operands[0], out, starts, ends, steps)


def _concatenate(graph: Graph, equation: Any, operands: list) -> Operand:
  out, axis = equation.outvars[0].aval, equation.params['dimension']
  return graph.add('Concat', operands, out.shape, out.dtype, axis=axis)


def _stack(graph: Graph, equation: Any, operands: list) -> Operand:
  out, axis = equation.outvars[0].aval, equation.params['axis']
  parts = [
    graph.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in operands
  ]
  return graph.add('Concat', parts, out.shape, out.dtype, axis=axis)


def _split(graph: Graph, equation: Any, operands: list) -> list[Operand]:
  """The parts of `split`; those of `unstack` have the length 1 and no axis."""
  axis, (x,) = equation.params['axis'], operands
  results = [variable.aval for variable in equation.outvars]
  lengths = equation.params.get('sizes', (1,) * len(results))
  ends = np.cumsum(lengths)
  found: list[Operand] = []
  for out, length, end in zip(results, lengths, ends, strict=True):
    place = [np.array([n], np.int64) for n in (end - length, end, axis)]
    shape = (*x.shape[:axis], int(length), *x.shape[axis + 1 :])
    part = graph.add('Slice', [x, *place], shape, out.dtype)
    found.append(graph.reshape(part, out.shape))
  return found


def _pad(graph: Graph, equation: Any, operands: list) -> Operand:
  out, config = equation.outvars[0].aval, equation.params['padding_config']
  low, high, inner = zip(*config, strict=True)
  if any(inner) or min(*low, *high) < 0:
    raise Unsupported('padding between elements, or a crop')
  (x, value), pads = operands, np.array([*low, *high], np.int64)
  return graph.add('Pad', [x, pads, value], out.shape, out.dtype)


def _elementwise(graph: Graph, equation: Any, operands: list) -> Operand:
  name, dtype = equation.primitive.name, equation.outvars[0].aval.dtype
  if name in LOGICAL and dtype != np.bool_:
    raise Unsupported(f'{name} of {dtype}')
  floating = np.issubdtype(dtype, np.floating)
  if name == 'sub' and floating and isinstance(operands[1], np.ndarray):
    # Runtimes merge the addition of a constant into the convolution before it.
    name, operands = 'add', [operands[0], -operands[1]]
  return graph.elementwise(ELEMENTWISE[name], operands, dtype)


def _less_or_equal(graph: Graph, equation: Any, operands: list) -> Operand:
  del equation
  # `_select` recognises a ReLU by the operands of the comparison.
  result = graph.elementwise('LessOrEqual', operands, np.dtype(bool))
  graph.compared[result.name] = (operands[0], operands[1])
  return result


def _select(graph: Graph, equation: Any, operands: list) -> Operand:
  which, *cases = operands
  dtype = equation.outvars[0].aval.dtype
  if len(cases) != 2 or which.dtype != np.bool_:
    raise Unsupported('a selection of more than two cases')
  no, yes = cases
  compared = graph.compared.get(getattr(which, 'name', ''))
  if compared and compared[0] is no and _zero(yes) and _zero(compared[1]):
    return graph.elementwise('Relu', [no], dtype)  # where(x <= 0, 0, x)
  return graph.elementwise('Where', [which, yes, no], dtype)


def _zero(operand: Operand) -> bool:
  return isinstance(operand, np.ndarray) and not operand.any()


def _not_equal(graph: Graph, equation: Any, operands: list) -> Operand:
  del equation
  equal = graph.elementwise('Equal', operands, np.dtype(bool))
  return graph.elementwise('Not', [equal], np.dtype(bool))


def _same(graph: Graph, equation: Any, operands: list) -> Operand:
  del graph, equation
  return operands[0]


def _cast(graph: Graph, equation: Any, operands: list) -> Operand:
  (x,), dtype = operands, equation.params['new_dtype']
  if x.dtype == dtype:
    return x
  if isinstance(x, np.ndarray):
    return x.astype(dtype)
  return graph.elementwise('Cast', [x], dtype, to=graph.type_of(dtype))


def _power(graph: Graph, equation: Any, operands: list) -> Operand:
  (x,) = operands
  # `square` has no parameter y.
  exponent = np.array(equation.params.get('y', 2), x.dtype)
  return graph.elementwise('Pow', [x, exponent], x.dtype)


def _reciprocal_root(graph: Graph, equation: Any, operands: list) -> Operand:
  del equation
  (x,) = operands
  root = graph.elementwise('Sqrt', [x], x.dtype)
  return graph.elementwise('Reciprocal', [root], x.dtype)


def _erfc(graph: Graph, equation: Any, operands: list) -> Operand:
  del equation
  (x,) = operands
  erf = graph.elementwise('Erf', [x], x.dtype)
  return graph.elementwise('Sub', [np.array(1, x.dtype), erf], x.dtype)


def _clamp(graph: Graph, equation: Any, operands: list) -> Operand:
  del equation
  low, x, high = operands
  x = graph.elementwise('Max', [x, low], x.dtype)
  return graph.elementwise('Min', [x, high], x.dtype)


# Operands of these may be stored with axes of length 1, see `onnx_graph`.
_ON_VIEWS: dict[str, Callable[..., Operand]] = {
  **dict.fromkeys(ELEMENTWISE, _elementwise),
  'clamp': _clamp,
  'convert_element_type': _cast,
  'copy': _same,
  'erfc': _erfc,
  'integer_pow': _power,
  'le': _less_or_equal,
  'ne': _not_equal,
  'rsqrt': _reciprocal_root,
  'select_n': _select,
  'square': _power,
  'stop_gradient': _same,
  'broadcast_in_dim': _broadcast,
  'transpose': _transpose,
}
# Those of the others are whole.
_ON_WHOLE: dict[str, Callable[..., Any]] = {
  **dict.fromkeys(REDUCTIONS, _reduce),
  'conv_general_dilated': _convolution,
  'dot_general': _product,
  **dict.fromkeys(POOLS, _pool),
  'concatenate': _concatenate,
  'expand_dims': _reshape,
  'gather': _gather,
  'pad': _pad,
  'reshape': _reshape,
  'rev': _reverse,
  'slice': _slice,
  'split': _split,
  'squeeze': _reshape,
  'stack': _stack,
  'unstack': _split,
}
TRANSLATIONS = _ON_VIEWS | _ON_WHOLE
