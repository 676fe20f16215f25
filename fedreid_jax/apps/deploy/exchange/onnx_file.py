"""Embeddings as ONNX programs.

The traced program is translated equation by equation with the builders of the
package `onnx`: calls are inlined, equations of constants are computed, and the
rest is translated by the tables of `onnx_elementwise`, `onnx_shapes` and
`onnx_sums`.

Maintained converters did not work: jax2onnx 0.17.1 excludes the version of
Orbax that this package needs, and with JAX 0.10 it writes the max-pooling of a
ResNet with four spatial axes, which ONNX Runtime refuses. tf2onnx cannot read
the StableHLO of `jax2tf`.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jax import export
from jax.extend import core

import fedreid_jax
from fedreid_jax.apps.deploy.exchange import (
  onnx_elementwise,
  onnx_shapes,
  onnx_sums,
)
from fedreid_jax.apps.deploy.exchange.embedding import (
  BATCH,
  IMAGES,
  OUTPUT,
  Embedding,
)
from fedreid_jax.apps.deploy.exchange.onnx_graph import (
  OPSET,
  Graph,
  Operand,
  Unsupported,
  Value,
)
from fedreid_jax.core import extras
from fedreid_jax.models import flops

SUFFIX = '.onnx'
IR_VERSION = 8  # of opset 18; later ones need later runtimes
TRANSLATIONS = {
  **onnx_elementwise.TRANSLATIONS,
  **onnx_shapes.TRANSLATIONS,
  **onnx_sums.TRANSLATIONS,
}
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


def encode(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """Returns the content of a file.

  Raises:
    ConfigError: without the package `onnx`, or for a network with an operation
      that has no translation.
  """
  onnx = extras.load('onnx', '--format=onnx', extras.command('export'))
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
    producer_version=fedreid_jax.__version__,
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


def _translate(
  graph: Graph, program: core.ClosedJaxpr, inputs: Sequence[Operand]
) -> list[Operand]:
  """Adds the equations of a program and returns its results."""
  jaxpr = program.jaxpr
  known: dict[Any, Operand] = dict(zip(jaxpr.invars, inputs, strict=True))
  consts = [np.asarray(value) for value in program.consts]
  known |= zip(jaxpr.constvars, consts, strict=True)

  def read(atom: Any) -> Operand:
    if not isinstance(atom, core.Literal):
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
  """Adds an equation and returns its results."""
  name, params = equation.primitive.name, equation.params
  if name in CALLS:
    inner = params[CALLS[name]]
    if not isinstance(inner, core.ClosedJaxpr):
      inner = core.ClosedJaxpr(inner, ())
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
  if name not in TRANSLATIONS:
    raise Unsupported(f'it has the operation {name!r}')
  return [TRANSLATIONS[name](graph, equation, operands)]


def _is_constant(equation: Any, operands: list[Operand]) -> bool:
  """Returns whether the results of an equation can be computed now."""
  atoms = (*equation.invars, *equation.outvars)
  # A constant may be stored with axes of length 1, and JAX needs whole ones.
  return all(
    isinstance(one, np.ndarray) and one.shape == atom.aval.shape
    for one, atom in zip(operands, equation.invars, strict=True)
  ) and not any(
    export.is_symbolic_dim(n) for atom in atoms for n in atom.aval.shape
  )


def reader(path: Path) -> Callable[..., np.ndarray]:
  """Returns a function that runs a file in ONNX Runtime on the CPU.

  Raises:
    ConfigError: without ONNX Runtime.
  """
  runtime = extras.load(
    'onnxruntime', '--format=onnx', extras.command('export')
  )
  session = runtime.InferenceSession(
    path.read_bytes(), providers=['CPUExecutionProvider']
  )
  names = [one.name for one in session.get_inputs()]

  def run(*inputs: np.ndarray) -> np.ndarray:
    (found,) = session.run([OUTPUT], dict(zip(names, inputs, strict=True)))
    return found

  return run
