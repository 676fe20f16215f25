"""Modules run as one program each, with results in NumPy.

Operation by operation, a toy module compiles tens of tiny programs.
"""

import functools

import jax


@functools.partial(jax.jit, static_argnames=('module', 'given'))
def _init(module, seed, inputs, given):
  return module.init(jax.random.key(seed), *inputs, **dict(given))


@functools.partial(jax.jit, static_argnames=('module', 'given'))
def _apply(module, variables, inputs, arrays, given):
  return module.apply(variables, *inputs, **arrays, **dict(given))


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
