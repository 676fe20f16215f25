"""FedProx: a proximal term keeps local training close to the server's model.

Li et al., Federated optimization in heterogeneous networks, MLSys 2020, eq. 2:

  L_k(w) + mu / 2 |w - w^t|^2

over the trainable shared parameters. The term is part of the loss, so its
gradient enters the momentum.

Deviations from the paper: no client does less work than the others. Deviations
from the released code: there the proximal gradient is added after the gradient
of the loss, to plain SGD. The re-identification papers that compare with
FedProx give no mu: 0.01 is an assumption.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedProx."""

  mu: Annotated[
    float,
    Range(0),
    Mark.STRENGTH,
    "weight of the squared distance to the server's model",
  ] = 0.01


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  mu = options.mu

  def loss(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del state
    # The server has no counterpart of a client's private classifier.
    anchor, _ = trees.trainable(ctx.received)
    distance = jnp.float32(0.0)
    for name, start in anchor.items():
      moved = variables[name] - jax.lax.stop_gradient(start)
      distance += (moved**2).sum()
    return 0.5 * mu * distance, {'distance': distance}

  return Component(
    'fedprox',
    client=ClientHooks(loss=loss),
    properties=('anchored', 'label_free', 'proximal', 'separable'),
  )
