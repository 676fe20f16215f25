"""A graph of ONNX operators under construction.

Operators broadcast their operands like NumPy, so a value may be stored with
axes of length 1 where the variable of the program is longer. `Graph.whole`
repeats the value for operators that do not broadcast.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
from jax import export

from fedreid_jax import errors
from fedreid_jax.core import plugins

OPSET = 18  # since 2022; programs for inference support it widely
END = np.iinfo(np.int64).max  # of an axis, whatever its length

Shape = tuple[Any, ...]  # an axis may be a multiple of the number of images


class Value(NamedTuple):
  """A result of an operator, or an input."""

  name: str  # in the graph
  shape: Shape  # as stored
  dtype: np.dtype


Operand = Value | np.ndarray  # an array is a constant


class Unsupported(errors.ConfigError):
  """A part of a program that has no translation."""

  def __init__(self, what: str):
    super().__init__(
      f'the network cannot be converted: {what}',
      '--format=onnx',
      'use --format=jax',
    )


def joined(operands: Sequence[Operand]) -> Shape:
  """The shape of a broadcast."""
  rank = max(len(one.shape) for one in operands)
  shapes = [(1,) * (rank - len(x.shape)) + tuple(x.shape) for x in operands]
  return tuple(
    next((n for n in sizes if not (isinstance(n, int) and n == 1)), 1)
    for sizes in zip(*shapes, strict=True)
  )


class Graph:
  """Operators in the order of their execution."""

  def __init__(self, batch: Any, images: str):
    """Starts a graph with a symbolic length `batch` of the input `images`."""
    self._onnx = plugins.load_extra(
      'onnx', '--format=onnx', plugins.install_command('export')
    )
    self._batch, self._images = batch, images
    self._multiples: dict[int, Value] = {}
    self._names: dict[tuple[Any, ...], str] = {}
    # The operand and the axes of a transposition by the name of its result.
    self._transposed: dict[str, tuple[Value, tuple[int, ...]]] = {}
    self.nodes: list[Any] = []
    self.initializers: dict[str, Any] = {}
    # Operands of `x <= y` by the name of the result.
    self.compared: dict[str, tuple[Operand, Operand]] = {}

  def add(
    self,
    operator: str,
    operands: Sequence[Operand],
    shape: Shape,
    dtype: Any,
    **attributes: Any,
  ) -> Value:
    """Appends an operator and returns its result."""
    result = Value(f'{operator}_{len(self.nodes)}', tuple(shape), dtype)
    self.nodes.append(
      self._onnx.helper.make_node(
        operator,
        [self._name(one) for one in operands],
        [result.name],
        name=result.name,
        **attributes,
      )
    )
    return result

  def name(self, operand: Operand, name: str) -> None:
    """Adds an output with a name that has the value of an operand."""
    self.nodes.append(
      self._onnx.helper.make_node(
        'Identity', [self._name(operand)], [name], name=name
      )
    )

  def _name(self, operand: Operand) -> str:
    if isinstance(operand, Value):
      return operand.name
    array = np.asarray(operand, order='C')
    # Equal constants are stored once.
    digest = hashlib.sha256(array.tobytes()).digest()
    key = array.dtype, array.shape, digest
    if key not in self._names:
      name = self._names[key] = f'constant_{len(self._names)}'
      self.initializers[name] = self._onnx.numpy_helper.from_array(array, name)
    return self._names[key]

  def elementwise(
    self,
    operator: str,
    operands: Sequence[Operand],
    dtype: Any,
    **attributes: Any,
  ) -> Value:
    """Appends an operator that works element by element."""
    views = [
      self._transposed.get(x.name) for x in operands if isinstance(x, Value)
    ]
    axes = views[0][1] if views and views[0] else ()
    if not axes or any(view is None or view[1] != axes for view in views):
      return self.add(operator, operands, joined(operands), dtype, **attributes)
    # ONNX has channels before positions in convolutions, and the networks after
    # them. Operators are moved before a transposition, so that it is next to
    # that of the following convolution, and the two cancel.
    inverse = np.argsort(axes)
    sources = [
      self._transposed[x.name][0]
      if isinstance(x, Value)
      else x.reshape((1,) * (len(axes) - x.ndim) + x.shape).transpose(inverse)
      for x in operands
    ]
    result = self.add(operator, sources, joined(sources), dtype, **attributes)
    return self.transpose(result, axes)

  def type_of(self, dtype: Any) -> int:
    """Returns ONNX's number of a type, or raises Unsupported if it has none."""
    try:
      return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    except (KeyError, ValueError) as error:
      raise Unsupported(f'type {dtype}') from error

  def reshape(self, operand: Operand, shape: Shape) -> Operand:
    """The same elements in another shape."""
    if tuple(operand.shape) == tuple(shape):
      return operand
    if isinstance(operand, np.ndarray):
      return operand.reshape(shape)
    # ONNX infers one length, written as -1, from the number of elements.
    sizes = [-1 if export.is_symbolic_dim(n) else n for n in shape]
    if sizes.count(-1) > 1:
      raise Unsupported(f'a reshape to {shape}')
    target = np.array(sizes, np.int64)
    return self.add('Reshape', [operand, target], shape, operand.dtype)

  @overload
  def transpose(self, operand: Value, axes: Sequence[int]) -> Value: ...

  @overload
  def transpose(self, operand: Operand, axes: Sequence[int]) -> Operand: ...

  def transpose(self, operand: Operand, axes: Sequence[int]) -> Operand:
    """An operand with its axes in another order."""
    if isinstance(operand, np.ndarray):
      return operand.transpose(axes)
    source, before = self._transposed.get(
      operand.name, (operand, tuple(range(len(axes))))
    )
    order = tuple(before[axis] for axis in axes)
    if order == tuple(range(len(order))):
      return source
    shape = tuple(source.shape[axis] for axis in order)
    result = self.add(
      'Transpose', [source], shape, source.dtype, perm=list(order)
    )
    self._transposed[result.name] = (source, order)
    return result

  def whole(self, operand: Operand, shape: Shape) -> Operand:
    """Repeats an operand along the axes in which it is stored with length 1."""
    if tuple(operand.shape) == tuple(shape):
      return operand
    if isinstance(operand, np.ndarray) and not any(
      map(export.is_symbolic_dim, shape)
    ):
      return np.broadcast_to(operand, shape)
    return self.add(
      'Expand', [operand, self._sizes(shape)], shape, operand.dtype
    )

  def _sizes(self, shape: Shape) -> Operand:
    parts = [
      self._multiple(n)
      if export.is_symbolic_dim(n)
      else np.array([n], np.int64)
      for n in shape
    ]
    return self.add('Concat', parts, (len(parts),), np.dtype(np.int64), axis=0)

  def _multiple(self, size: Any) -> Value:
    """A multiple of the number of images, int64 `[1]`."""
    factor, rest = divmod(size, self._batch)
    if not isinstance(factor, int) or rest != 0:
      raise Unsupported(f'an axis of length {size}')
    if factor not in self._multiples:
      images = Value(self._images, (), np.dtype(np.uint8))
      number = self.add('Shape', [images], (1,), np.dtype(np.int64), end=1)
      if factor != 1:
        times = np.array([factor], np.int64)
        number = self.add('Mul', [number, times], (1,), number.dtype)
      self._multiples[factor] = number
    return self._multiples[factor]

  def needed(self, output: str) -> tuple[list[Any], list[Any]]:
    """The operators and constants on which an output depends."""
    names, nodes = {output}, []
    for node in reversed(self.nodes):
      if names & {*node.output}:
        names |= {*node.input}
        nodes.append(node)
    constants = [x for name, x in self.initializers.items() if name in names]
    return nodes[::-1], constants
