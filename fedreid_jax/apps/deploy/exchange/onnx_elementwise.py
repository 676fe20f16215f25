"""Translations of primitives that work element by element.

`TRANSLATIONS` has a function `(graph, equation, operands) -> result` for each
of JAX's primitives. Operands may be stored with axes of length 1, see
`onnx_graph`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedreid_jax.apps.deploy.exchange.onnx_graph import (
  Graph,
  Operand,
  Unsupported,
)

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


def _clamp(graph: Graph, equation: Any, operands: list) -> Operand:
  del equation
  low, x, high = operands
  x = graph.elementwise('Max', [x, low], x.dtype)
  return graph.elementwise('Min', [x, high], x.dtype)


TRANSLATIONS: dict[str, Callable[..., Operand]] = {
  **dict.fromkeys(ELEMENTWISE, _elementwise),
  'clamp': _clamp,
  'convert_element_type': _cast,
  'copy': _same,
  'integer_pow': _power,
  'le': _less_or_equal,
  'ne': _not_equal,
  'rsqrt': _reciprocal_root,
  'select_n': _select,
  'square': _power,
  'stop_gradient': _same,
}
