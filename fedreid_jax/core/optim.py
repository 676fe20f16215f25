"""Optimiser and learning rate from a configuration.

SGD has PyTorch's semantics, which the papers' numbers rest on: weight decay is
added to the gradient before momentum and on every trainable leaf, and the
learning rate multiplies last, so changing it does not rescale the momentum.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from fedreid_jax import errors
from fedreid_jax.core.types import Array, Flat, Tree

SCHEDULES = ('constant', 'step', 'linear', 'cosine')
OPTIMIZERS = ('sgd', 'adam')


class Optimizer(NamedTuple):
  """Pure functions over the trainable leaves.

  Attributes:
    init: `(params) -> state`.
    update: `(grads, state, params, lr) -> (params, state)`.
  """

  init: Callable[[Flat], Tree]
  update: Callable[..., tuple[Flat, Tree]]


def make(config) -> Optimizer:
  """Builds the client optimiser from `config.optim`.

  Args:
    config: fields `name`, `momentum`, `nesterov`, `weight_decay`,
      `lr_multipliers` (pairs of a regular expression and a factor; the first
      that matches a leaf's name counts).
  """
  decay = optax.add_decayed_weights(config.weight_decay)
  if config.name == 'sgd':
    chain = [decay, optax.trace(config.momentum, nesterov=config.nesterov)]
  elif config.name == 'adam':
    chain = [decay, optax.scale_by_adam()]
  else:
    raise errors.ConfigError(
      f'unknown optimiser {config.name!r}', 'optim.name', f'one of {OPTIMIZERS}'
    )
  transform = optax.chain(*chain)
  rules = [(re.compile(p), float(f)) for p, f in config.lr_multipliers]

  def multiplier(name: str) -> float:
    return next((f for rule, f in rules if rule.match(name)), 1.0)

  def update(grads, state, params, lr):
    steps: Any
    steps, state = transform.update(grads, state, params)
    return {
      name: params[name] - (lr * multiplier(name)) * steps[name]
      for name in params
    }, state

  return Optimizer(transform.init, update)


def schedule(config, rounds: int) -> Callable[[Array], Array]:
  """Builds the learning rate as a function of the global round.

  Args:
    config: fields `lr`, `schedule`, `milestones` (rounds), `gamma`, `points`
      (pairs of a round and a factor of `lr`, for `linear`), `warmup` (rounds
      of linear rise from zero, before any schedule).
    rounds: length of the run, where `cosine` reaches zero.

  Returns:
    `(round) -> lr`; the round may have a fraction, how far a client is in it.
  """
  if config.schedule == 'constant':
    shape = optax.constant_schedule(1.0)
  elif config.schedule == 'step':
    shape = optax.piecewise_constant_schedule(
      1.0, {int(m): config.gamma for m in config.milestones}
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
