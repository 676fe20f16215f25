"""Modules run as one program each, with results in NumPy.

Operation by operation, a toy module compiles tens of tiny programs.
"""

import functools
import inspect

import jax

from fedreid_jax.models.forward import ForwardCtx


def _keywords(module, given):
  """Returns the keywords of a call; those of a context are put into one."""
  takes = inspect.signature(type(module).__call__).parameters
  if 'ctx' not in takes or 'train' not in given:
    return given
  own = {name: given[name] for name in ForwardCtx._fields if name in given}
  rest = {name: x for name, x in given.items() if name not in own}
  return rest | {'ctx': ForwardCtx(**own)}


@functools.partial(jax.jit, static_argnames=('module', 'given'))
def _init(module, seed, inputs, given):
  keywords = _keywords(module, dict(given))
  return module.init(jax.random.key(seed), *inputs, **keywords)


@functools.partial(jax.jit, static_argnames=('module', 'given'))
def _apply(module, variables, inputs, arrays, given):
  keywords = _keywords(module, arrays | dict(given))
  return module.apply(variables, *inputs, **keywords)


def init(module, *inputs, seed=0, **given):
  """Draws the variables of a module; options are hashable."""
  found = _init(module, seed, inputs, tuple(given.items()))
  return jax.device_get(found)


def apply(module, variables, *inputs, arrays=None, **given):
  """Applies a module; `arrays` are its options that are no constants."""
  found = _apply(module, variables, inputs, arrays or {}, tuple(given.items()))
  return jax.device_get(found)


def grad(function, argnums=0):
  """`jax.grad` as one program."""
  return jax.jit(jax.grad(function, argnums))


def value_and_grad(function, argnums=0):
  """`jax.value_and_grad` as one program."""
  return jax.jit(jax.value_and_grad(function, argnums))
