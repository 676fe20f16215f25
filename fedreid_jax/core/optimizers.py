"""Optimiser and learning rate from a configuration.

SGD has PyTorch's semantics, which the papers' numbers rest on: weight decay is
added to the gradient before momentum, and the learning rate multiplies last, so
changing it does not rescale the momentum. Every leaf that the loss depends on
decays, even while its gradient is zero. A leaf that the loss does not depend on
has no gradient at all (`grad is None` in PyTorch), does not decay and does not
move. Which leaves those are is read off the loss when it is differentiated, so
a step costs nothing for it.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from fedreid_jax import errors
from fedreid_jax.core import patterns
from fedreid_jax.core.types import Array, Flat, Tree

Schedule = Literal['constant', 'step', 'linear', 'cosine']
OptimizerName = Literal['sgd', 'adam']
SCHEDULES = get_args(Schedule)
OPTIMIZERS = get_args(OptimizerName)


class Optimizer(NamedTuple):
  """Pure functions over the trainable leaves.

  Attributes:
    init: `(params) -> state`.
    grad: `(loss) -> gradient`, as `jax.grad(loss, has_aux=True)` by its first
      argument, with the weight decay of the leaves the loss depends on.
    update: `(grads, state, params, lr) -> (params, state)`.
    factor: `(name of a leaf) -> multiplier of its learning rate`.
    effective_steps: `(steps, decay) -> |a|_1`, see `effective_steps`; None
      where an update is no linear function of the gradients.
  """

  init: Callable[[Flat], Tree]
  grad: Callable[[Callable[..., tuple[Array, Any]]], Callable[..., Any]]
  update: Callable[..., tuple[Flat, Tree]]
  factor: Callable[[str], float]
  effective_steps: Callable[..., Array] | None


def make(config) -> Optimizer:
  """Builds the client optimiser from `config.optim`.

  Args:
    config: fields `name`, `momentum`, `nesterov`, `weight_decay`,
      `lr_multipliers` (pairs of a regular expression and a factor; the first
      that matches a leaf's name counts).
  """
  if config.name == 'sgd':
    return sgd(
      config.momentum,
      config.nesterov,
      config.weight_decay,
      config.lr_multipliers,
    )
  if config.name == 'adam':
    return _optimizer(
      optax.scale_by_adam(), config.weight_decay, config.lr_multipliers, None
    )
  raise errors.ConfigError(
    f'unknown optimiser {config.name!r}', 'optim.name', f'one of {OPTIMIZERS}'
  )


def sgd(
  momentum: float,
  nesterov: bool,
  weight_decay: float,
  lr_multipliers: tuple[tuple[str, float], ...] = (),
) -> Optimizer:
  """Builds SGD with PyTorch's semantics."""
  return _optimizer(
    optax.trace(momentum, nesterov=nesterov),
    weight_decay,
    lr_multipliers,
    functools.partial(effective_steps, momentum=momentum, nesterov=nesterov),
  )


def _optimizer(core, weight_decay, lr_multipliers, effective_) -> Optimizer:
  decaying = _decaying(weight_decay)
  rules = [
    (patterns.Pattern(p, 'optim.lr_multipliers'), float(f))
    for p, f in lr_multipliers
  ]

  def factor(name: str) -> float:
    return next((f for rule, f in rules if rule.match(name)), 1.0)

  def grad(loss):
    def decayed(params, *args):
      return loss(decaying(params), *args)

    return jax.grad(decayed, has_aux=True)

  def update(grads, state, params, lr):
    steps: Any
    steps, state = core.update(grads, state, params)
    return {
      name: params[name] - (lr * factor(name)) * steps[name] for name in params
    }, state

  return Optimizer(core.init, grad, update, factor, effective_)


def _decaying(weight_decay: float) -> Callable[[Flat], Flat]:
  """Returns the identity of parameters, whose gradient has their decay.

  JAX tells a gradient that is absent (a symbolic zero) from one that is zero.
  """

  @jax.custom_vjp
  def same(params):
    return params

  def forward(params):
    values = {name: leaf.value for name, leaf in params.items()}
    return values, values

  def backward(params, cotangents):
    absent = jax.custom_derivatives.SymbolicZero
    return (
      {
        name: jnp.zeros_like(params[name])
        if isinstance(cotangent, absent)
        else cotangent + weight_decay * params[name]
        for name, cotangent in cotangents.items()
      },
    )

  same.defvjp(forward, backward, symbolic_zeros=True)
  return same


def effective_steps(
  num_steps: Array,
  decay: Array | float = 0.0,
  *,
  momentum: float,
  nesterov: bool,
) -> Array:
  """Returns `|a|_1`: how often a round's gradients count in its update.

  With a constant gradient g and learning rate eta, `num_steps` steps of SGD
  from a zero momentum buffer move the weights by `-eta |a|_1 g` (Wang et al.,
  FedNova, section 4): steps without momentum; for heavy ball and Nesterov the
  recursion is run, which gives the closed forms of both.

  Args:
    num_steps: local steps, int32, may be traced.
    decay: learning rate times the proximal weight mu, 0 without one.
    momentum: of SGD.
    nesterov: whether it is Nesterov's.
  """

  def step(_, carry):
    moved, buffer = carry
    gradient = 1.0 - decay * moved
    buffer = momentum * buffer + gradient
    move = gradient + momentum * buffer if nesterov else buffer
    return moved + move, buffer

  zero = jnp.float32(0.0)
  return jax.lax.fori_loop(0, num_steps, step, (zero, zero))[0]


def schedule(config, rounds: int) -> Callable[[Array], Array]:
  """Builds the learning rate as a function of the global round.

  Args:
    config: fields `lr`, `schedule`, `milestones` (rounds, or shares of the run
      below 1), `gamma`, `points` (pairs of a round and a factor of `lr`, for
      `linear`), `warmup` (rounds of linear rise from zero, before any
      schedule).
    rounds: length of the run, of which milestones below 1 are shares and where
      `cosine` reaches zero.

  Returns:
    `(round) -> lr`; the round may have a fraction, how far a client is in it.
  """
  if config.schedule == 'constant':
    shape = optax.constant_schedule(1.0)
  elif config.schedule == 'step':
    shape = optax.piecewise_constant_schedule(
      1.0,
      {
        int(m) if m >= 1 else math.ceil(m * rounds): config.gamma
        for m in config.milestones
      },
    )
  elif config.schedule == 'linear':
    points = jnp.asarray(config.points, jnp.float32)
    shape = functools.partial(jnp.interp, xp=points[:, 0], fp=points[:, 1])
  elif config.schedule == 'cosine':
    shape = optax.cosine_decay_schedule(1.0, max(rounds, 1))
  else:
    raise errors.ConfigError(
      f'unknown schedule {config.schedule!r}',
      'optim.schedule',
      f'one of {SCHEDULES}',
    )

  def rate(round_: Array) -> Array:
    round_ = jnp.asarray(round_, jnp.float32)
    rise = 1.0
    if config.warmup:
      rise = jnp.minimum((jnp.floor(round_) + 1) / config.warmup, 1.0)
    return jnp.asarray(config.lr * shape(round_) * rise, jnp.float32)

  return rate
