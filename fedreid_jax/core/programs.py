"""Traced programs, by names that every supported version of JAX has.

`jax.extend.core` calls a program with its constants `ClosedJaxpr`, and one
without `Jaxpr`. JAX 0.12 has one class for both: the former name is an alias of
the latter, which a later version may remove. No other module uses either name.
"""

from typing import TYPE_CHECKING, Any

from jax.extend import core
from jax.interpreters import partial_eval

if TYPE_CHECKING or hasattr(core, 'ClosedJaxpr'):
  Program = core.ClosedJaxpr
else:  # a version of JAX without the alias
  Program = core.Jaxpr

Equation = core.JaxprEqn
Literal = core.Literal
Variable = core.Var
function_of = core.jaxpr_as_fun  # `(*inputs) -> [outputs]` of a program


def closed(program: Any) -> Program:
  """Returns a program that an equation has, with its constants."""
  return program if isinstance(program, Program) else Program(program, ())


def without_unused(program: Program) -> tuple[Program, list[bool]]:
  """Returns a program of one result without the inputs that do not change it.

  The list says which inputs are left.
  """
  needed, used = partial_eval.dce_jaxpr(program.jaxpr, [True])
  return Program(needed, program.consts), list(used)
