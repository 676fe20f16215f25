"""Counts parameters and multiply-adds of a network from its traced program.

The program of an embedding at test time is traced with abstract values, without
computing it. Equations that the embedding does not need are removed, and the
products of the convolutions and matrix products are counted.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core import programs, trees, types

# Leaves of the parts that a visible image does not pass through.
OTHER_MODALITY = '/infrared_'


class Cost(NamedTuple):
  """Size of a network.

  Parameters are the trained values on which the output depends, with the parts
  of both modalities. Multiply-adds are products in convolutions and matrix
  products for one image, which passes through the parts of one modality.
  """

  parameters: int
  multiply_adds: int


def count(
  model: types.Model,
  image_shape: tuple[int, int, int],
  *,
  classifier: bool = False,
) -> Cost:
  """Counts parameters and multiply-adds for images `(H, W, ch)` at test time.

  Args:
    classifier: whether to include the identity scores, not only the embedding.

  Raises:
    ConfigError: for a network with a loop of unknown length.
  """
  variables = jax.eval_shape(model.init, jax.random.key(0))
  images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)

  def output(variables, images):
    outputs, _ = model.apply(variables, images, train=False)
    return outputs.logits if classifier else outputs.embedding

  program = jax.make_jaxpr(output)(variables, images)
  needed, used = programs.without_unused(program)
  # A flat dict is traced in the order of its sorted names.
  names = zip(sorted(variables), used[:-1], strict=True)
  leaves = [name for name, is_used in names if is_used]
  params, _ = trees.trainable({n: variables[n] for n in leaves})
  other = [OTHER_MODALITY in n for n in leaves] + [False] * used[-1]
  return Cost(
    sum(leaf.size for leaf in params.values()), _walk(needed.jaxpr, other)[0]
  )


def _walk(program: Any, other: list[bool]) -> tuple[int, list[bool]]:
  """Returns multiply-adds, and the mask `other` of the results."""
  marked = {v for v, mark in zip(program.invars, other, strict=True) if mark}

  def marks(atoms):
    return [isinstance(a, programs.Variable) and a in marked for a in atoms]

  total = 0
  for equation in program.eqns:
    inputs = marks(equation.invars)
    products, outputs = _equation(equation, inputs)
    total += products
    marked |= {
      v for v, mark in zip(equation.outvars, outputs, strict=True) if mark
    }
  return total, marks(program.outvars)


def _equation(equation, inputs: list[bool]) -> tuple[int, list[bool]]:
  """The results of `_walk` for one equation."""
  name, params = equation.primitive.name, equation.params
  branch = fallback(equation)
  if branch is not None:
    # The branch does not have the first input, the index of the platform.
    return _walk(branch.jaxpr, inputs[1:])
  if name in ('while', 'cond'):
    raise errors.ConfigError(
      f'a {name} has a body with an unknown number of runs',
      'model',
      'count a network whose loops have a fixed length',
    )
  inner = params.get('jaxpr', params.get('call_jaxpr'))
  if inner is not None:
    inner = getattr(inner, 'jaxpr', inner)
    products, outputs = _walk(inner, inputs)
    return products * params.get('length', 1), outputs
  # A result of an input of the other modality belongs to it too, unless it is a
  # selection with a case of another kind, which joins the modalities again. The
  # first input of a selection is the condition.
  other = all(inputs[1:]) if name == 'select_n' else any(inputs)
  products = 0 if other else _products(equation)
  return products, [other] * len(equation.outvars)


def _products(equation) -> int:
  """The multiply-adds of a primitive, with those on padding."""
  name, params = equation.primitive.name, equation.params
  if name == 'conv_general_dilated':
    taps = params['dimension_numbers'].rhs_spec[1:]
  elif name == 'dot_general':
    (_, taps), _ = params['dimension_numbers']
  else:
    return 0
  right, out = equation.invars[1].aval, equation.outvars[0].aval
  return out.size * math.prod(right.shape[axis] for axis in taps)


def fallback(equation: programs.Equation) -> programs.Program | None:
  """The default branch of a `lax.platform_dependent`, else None."""
  # JAX lowers `platform_dependent` to a `cond` that names its platforms; an
  # ordinary `cond` does not. The default branch has the platform None.
  if equation.primitive.name != 'cond':
    return None
  params = equation.params
  platforms = params.get('branches_platforms')
  if not platforms:
    return None
  return params['branches'][platforms.index(None)]
