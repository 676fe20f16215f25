"""FedOpt: an optimiser at the server takes the mean update for a gradient.

Reddi et al., Adaptive federated optimization, ICLR 2021, Algorithms 1 and 2.
With the reduction's model w' of the round, g = w^t - w' is the gradient of

  adam, yogi, adagrad: FedAdam, FedYogi, FedAdagrad;
  sgd: FedAvgM (Hsu et al. 2019), heavy-ball momentum; rate 1 and momentum 0 is
  FedAvg.

Running statistics are those of the reduction.

Deviations from the paper: moments are corrected for their start at zero, as
optax does; the paper does not correct, and starts the second moment of Adam and
Yogi at tau^2. Deviations from released code: the same.
"""

from collections.abc import Callable

import optax

from fedreid_jax import errors
from fedreid_jax.core import partition
from fedreid_jax.core.component import (
  Component,
  InitCtx,
  ServerCtx,
  ServerStep,
)

OPTIMIZERS = ('sgd', 'adam', 'yogi', 'adagrad')


def make(
  name: str = 'adam',
  lr: float = 0.01,
  momentum: float = 0.9,
  beta2: float = 0.99,
  tau: float = 1e-3,
) -> Component:
  """Builds the component.

  Args:
    name: one of `OPTIMIZERS`.
    lr: of the server.
    momentum: of sgd; of adam and yogi the decay of the first moment.
    beta2: decay of the second moment of adam and yogi.
    tau: added to the root of the second moment.

  Raises:
    ConfigError: for an unknown optimiser.
  """
  made: dict[str, Callable[[], optax.GradientTransformation]] = {
    'sgd': lambda: optax.sgd(lr, momentum or None),
    'adam': lambda: optax.adam(lr, momentum, beta2, tau),
    'yogi': lambda: optax.yogi(lr, momentum, beta2, tau),
    'adagrad': lambda: optax.adagrad(lr, 0.0, tau),
  }
  if name not in made:
    raise errors.ConfigError(
      f'unknown optimiser {name!r}', 'fedopt.name', f'one of {OPTIMIZERS}'
    )
  transform = made[name]()

  def init(ctx: InitCtx):
    params, _ = partition.trainable(ctx.shared)
    return transform.init({n: x[None] for n, x in params.items()})

  def apply(server, ctx: ServerCtx):
    before, _ = partition.trainable(ctx.previous)
    gradient = {n: x - server.shared[n] for n, x in before.items()}
    updates, slot = transform.update(gradient, server.slots['fedopt'], before)
    return server.replace(
      shared={**server.shared, **optax.apply_updates(before, updates)},
      slots={**server.slots, 'fedopt': slot},
    )

  return Component(
    'fedopt', server_step=ServerStep(init=init, apply=apply, one_model=True)
  )
