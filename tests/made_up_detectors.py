"""Detectors of persons in ONNX files, made up for tests."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 64


def save(path, nodes, outputs, constants=(), shape=(1, 3, SIDE, SIDE)):
  """Writes a network with the input `images` and named outputs."""
  graph = helper.make_graph(
    nodes,
    'detector',
    [helper.make_tensor_value_info('images', TensorProto.FLOAT, shape)],
    [
      helper.make_tensor_value_info(name, kind, None)
      for name, kind in outputs.items()
    ],
    [numpy_helper.from_array(value, name) for name, value in constants],
  )
  version = [helper.make_opsetid('', 17)]
  model = helper.make_model(graph, opset_imports=version, ir_version=8)
  path.write_bytes(model.SerializeToString())
  return path


def constant(path, *arrays, **options):
  """A detector whose outputs are arrays, whatever it sees."""
  names = [f'out{k}' for k in range(len(arrays))]
  nodes = [
    helper.make_node('Identity', [f'c{k}'], [n]) for k, n in enumerate(names)
  ]
  kinds = {
    name: onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    for name, array in zip(names, arrays, strict=True)
  }
  constants = [(f'c{k}', array) for k, array in enumerate(arrays)]
  return save(path, nodes, kinds, constants, **options)


def bright(path, white=1.0, score=0.9):
  """A detector whose only box is that of all white pixels.

  A pixel is white if the mean of its channels is above nine tenths of `white`.
  """

  def edges(axis, first, last):
    """First and one after the last white position along an axis."""
    line, end = f'line{axis}', f'end{axis}'
    flat = {'axis': 1, 'keepdims': 0}
    return [
      helper.make_node('ReduceMax', ['mask'], [line], axes=[axis], keepdims=0),
      helper.make_node('ArgMax', [line], [first], **flat),
      helper.make_node('ArgMax', [line], [end], **flat, select_last_index=1),
      helper.make_node('Add', [end, 'one'], [last]),
    ]

  nodes = [
    helper.make_node('ReduceMean', ['images'], ['grey'], axes=[1], keepdims=0),
    helper.make_node('Greater', ['grey', 'limit'], ['above']),
    helper.make_node('Cast', ['above'], ['mask'], to=TensorProto.FLOAT),
    *edges(1, 'left', 'right'),
    *edges(2, 'top', 'bottom'),
    helper.make_node(
      'Concat', ['left', 'top', 'right', 'bottom'], ['whole'], axis=0
    ),
    helper.make_node('Cast', ['whole'], ['flat'], to=TensorProto.FLOAT),
    helper.make_node('Reshape', ['flat', 'shape'], ['boxes']),
    # Without a white pixel the score is 0.
    helper.make_node('ReduceMax', ['mask'], ['any'], axes=[1, 2], keepdims=0),
    helper.make_node('Mul', ['any', 'score'], ['scores']),
    helper.make_node('Identity', ['label'], ['labels']),
  ]
  return save(
    path,
    nodes,
    {
      'boxes': TensorProto.FLOAT,
      'scores': TensorProto.FLOAT,
      'labels': TensorProto.INT64,
    },
    [
      ('one', np.array(1, np.int64)),
      ('limit', np.array(0.9 * white, np.float32)),
      ('shape', np.array([1, 4], np.int64)),
      ('score', np.array([score], np.float32)),
      ('label', np.array([0], np.int64)),
    ],
  )
