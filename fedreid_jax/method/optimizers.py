"""Optimiser and learning rate from a configuration.

SGD has PyTorch's semantics, on which the papers' results are based: weight
decay is added to the gradient before momentum, and the learning rate is applied
last. Every parameter on which the loss depends has weight decay, even while its
gradient is zero. A parameter on which the loss does not depend has no gradient
(`grad is None` in PyTorch) and no weight decay, and does not change.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from fedreid_jax import errors
from fedreid_jax.core import patterns
from fedreid_jax.core.options import Mark, Natural, NonNegative, Range, Regex
from fedreid_jax.core.types import Array, Flat, Tree

Schedule = Literal['constant', 'step', 'linear', 'cosine']
OptimizerName = Literal['sgd', 'adam']
SCHEDULES = get_args(Schedule)
OPTIMIZERS = get_args(OptimizerName)
# Pairs of a regular expression and a factor; the first that matches applies.
Multipliers = tuple[tuple[str, float], ...]
# Argument and result of `jax.grad(loss, has_aux=True)`.
LossFn = Callable[..., tuple[Array, Any]]
Gradient = Callable[..., tuple[Flat, Any]]


class Optimizer(NamedTuple):
  """An optimiser as pure functions over the parameters.

  Attributes:
    init: `(params) -> state`.
    grad: `(loss) -> gradient`, like `jax.grad(loss, has_aux=True)` with respect
      to the first argument, plus the weight decay of the parameters on which
      the loss depends.
    update: `(grads, state, params, lr) -> (params, state)`.
    factor: `(name of a parameter) -> multiplier of its learning rate`.
    effective_steps: `(steps, decay) -> |a|_1`, see `effective_steps`; None if
      an update is not a linear function of the gradients.
  """

  init: Callable[[Flat], Tree]
  grad: Callable[[LossFn], Gradient]
  update: Callable[..., tuple[Flat, Tree]]
  factor: Callable[[str], float]
  effective_steps: Callable[..., Array] | None


@dataclasses.dataclass(frozen=True)
class Optim:
  """The optimiser of clients and its learning rate."""

  name: Annotated[OptimizerName, 'optimiser'] = 'sgd'
  lr: Annotated[
    NonNegative, Mark.STRENGTH, 'learning rate before schedule and multipliers'
  ] = 0.05
  momentum: Annotated[float, Range(0, 0.9999), 'sgd: momentum'] = 0.9
  nesterov: Annotated[bool, 'sgd: use Nesterov momentum'] = True
  weight_decay: Annotated[
    NonNegative, 'weight decay of the parameters that get a gradient'
  ] = 5e-4
  lr_multipliers: Annotated[
    tuple[tuple[str, float], ...],
    Regex(),
    'pairs of a regular expression of parameter names and a factor of their '
    'learning rate',
  ] = ()
  schedule: Annotated[Schedule, 'learning rate schedule by global round'] = (
    'constant'
  )
  milestones: Annotated[
    tuple[float, ...],
    Range(0),
    'step: rounds at which the rate is multiplied by gamma; values below 1 are '
    'fractions of the rounds of the schedule',
  ] = ()
  schedule_rounds: Annotated[
    Natural,
    'step, cosine: number of rounds of which milestones below 1 are fractions, '
    'and in which cosine reaches zero; 0 for the rounds of the run',
  ] = 0
  gamma: Annotated[NonNegative, 'step: factor of the rate'] = 0.1
  points: Annotated[
    tuple[tuple[float, float], ...],
    'linear: pairs of a round and a factor of the rate',
  ] = ()
  warmup: Annotated[
    Natural, 'number of rounds with a linear increase of the rate'
  ] = 0
  schedule_per_step: Annotated[
    bool, 'change the rate within a round instead of once per round'
  ] = False
  reset_each_round: Annotated[
    bool, 'start every round with a new optimiser state'
  ] = True


def make(config: Optim) -> Optimizer:
  """Builds the client optimiser from `config.optim`.

  Args:
    config: fields `name`, `momentum`, `nesterov`, `weight_decay`,
      `lr_multipliers` (pairs of a regular expression and a factor; the first
      expression that matches a parameter's name applies).

  Raises:
    ConfigError: for an unknown `name`.
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
  lr_multipliers: Multipliers = (),
) -> Optimizer:
  """Builds SGD with PyTorch's semantics, as the module describes them."""
  return _optimizer(
    optax.trace(momentum, nesterov=nesterov),
    weight_decay,
    lr_multipliers,
    functools.partial(effective_steps, momentum=momentum, nesterov=nesterov),
  )


def _optimizer(
  core: optax.GradientTransformation,
  weight_decay: float,
  lr_multipliers: Multipliers,
  effective_: Callable[..., Array] | None,
) -> Optimizer:
  decaying = _decaying(weight_decay)
  rules = [
    (patterns.Pattern(p, 'optim.lr_multipliers'), float(f))
    for p, f in lr_multipliers
  ]

  def factor(name: str) -> float:
    return next((f for rule, f in rules if rule.match(name)), 1.0)

  def grad(loss: LossFn) -> Gradient:
    def decayed(params: Flat, *args: Any) -> tuple[Array, Any]:
      return loss(decaying(params), *args)

    return jax.grad(decayed, has_aux=True)

  def update(
    grads: Flat, state: Tree, params: Flat, lr: Array
  ) -> tuple[Flat, Tree]:
    steps: Any
    steps, state = core.update(grads, state, params)
    # The rate comes after the momentum, as in PyTorch, so that a change of the
    # rate does not rescale the momentum.
    return {
      name: params[name] - (lr * factor(name)) * steps[name] for name in params
    }, state

  return Optimizer(core.init, grad, update, factor, effective_)


def _decaying(weight_decay: float) -> Callable[[Flat], Flat]:
  """Returns the identity function, with weight decay added to its gradient."""

  @jax.custom_vjp
  def same(params: Flat) -> Flat:
    return params

  def forward(params: Flat) -> tuple[Flat, Flat]:
    values = {name: leaf.value for name, leaf in params.items()}
    return values, values

  def backward(params: Flat, cotangents: Flat) -> tuple[Flat]:
    # A symbolic zero means that the loss does not depend on a parameter. JAX
    # knows this when it traces the gradient, so that it costs nothing per step.
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
  """Returns `|a|_1`, the total weight of a round's gradients in its update.

  With a constant gradient g and learning rate eta, `num_steps` steps of SGD
  from a zero momentum buffer change the weights by `-eta |a|_1 g` (Wang et al.,
  FedNova, section 4). Without momentum `|a|_1` is the number of steps.

  Args:
    num_steps: number of local steps, int32, which may be traced.
    decay: learning rate times the proximal weight mu, 0 without a proximal
      term.
    nesterov: whether SGD has Nesterov momentum instead of heavy ball.
  """

  def step(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
    # One recursion equals the closed forms of heavy ball and of Nesterov.
    moved, buffer = carry
    gradient = 1.0 - decay * moved
    buffer = momentum * buffer + gradient
    move = gradient + momentum * buffer if nesterov else buffer
    return moved + move, buffer

  zero = jnp.float32(0.0)
  return jax.lax.fori_loop(0, num_steps, step, (zero, zero))[0]


def bound_to_rounds(config: Optim) -> str:
  """Returns why a longer run would have other learning rates.

  Returns:
    A reason for users, '' if the rates do not depend on the number of rounds.
  """
  if config.schedule_rounds:
    return ''
  if config.schedule == 'cosine':
    return "optim.schedule='cosine' reaches zero in the last round"
  parts = [m for m in config.milestones if m < 1]
  if config.schedule == 'step' and parts:
    return f'optim.milestones has fractions of the rounds, {parts[0]}'
  return ''


def schedule(config: Optim, rounds: int) -> Callable[[Array], Array]:
  """Builds the learning rate as a function of the global round.

  Args:
    config: fields `lr`, `schedule`, `schedule_rounds` (0 for `rounds`),
      `milestones` (rounds, or fractions of them if below 1), `gamma`,
      `points` (pairs of a round and a factor of `lr`, for `linear`), `warmup`
      (number of rounds with a linear increase from zero, for every schedule).
    rounds: number of rounds of the run. Milestones below 1 are fractions of the
      rounds of the schedule, and `cosine` reaches zero there.

  Returns:
    `(round) -> lr`; the fractional part of `round` is the progress within the
    round.

  Raises:
    ConfigError: for an unknown `schedule`.
  """
  rounds = config.schedule_rounds or rounds
  if config.schedule == 'constant':
    shape = optax.constant_schedule(1.0)
  elif config.schedule == 'step':
    steps: dict[int, float] = {}
    for m in config.milestones:
      first = int(m) if m >= 1 else math.ceil(m * rounds - 1e-9)
      # Fractions of few rounds may be the same round.
      steps[first] = steps.get(first, 1.0) * config.gamma
    shape = optax.piecewise_constant_schedule(1.0, steps)
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
    # Whole rounds, from 1: the rate is not 0 in the first round.
    if config.warmup:
      rise = jnp.minimum((jnp.floor(round_) + 1) / config.warmup, 1.0)
    return jnp.asarray(config.lr * shape(round_) * rise, jnp.float32)

  return rate
