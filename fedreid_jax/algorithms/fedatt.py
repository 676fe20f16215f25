"""FedATT: aggregation with attention to clients that differ from the server.

Ji et al., Learning private neural language modeling with attentive aggregation,
IJCNN 2019, eq. 5-7. For every parameter l and client k of the cohort,

  s_k = |w^l - w_k^l|_2,  alpha = softmax_k(s),
  w^l <- w^l - epsilon sum_k alpha_k (w^l - w_k^l) + noise N(0, 1).

As published, a larger distance gives more attention. The norms in the softmax
are not normalised: it selects one client if distances differ by several units,
and is almost uniform if they are all small. The log contains its mean entropy
over parameters.

Deviations from the paper: none. Deviations from the released code: the norm is
that of the flattened parameter; the code takes the spectral norm of matrices
and has none for convolutions. Running statistics are averaged uniformly,
without attention. Noise is off by default, as in Wu & Gong's comparison.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method import aggregation
from fedreid_jax.method.component import (
  Component,
  ServerHooks,
)
from fedreid_jax.method.contexts import AggregationCtx
from fedreid_jax.method.sums import Gather


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedATT."""

  epsilon: Annotated[
    float, Range(1e-6), Mark.STRENGTH, "step size towards the clients' models"
  ] = 1.2
  noise_scale: Annotated[
    float, Range(0), 'standard deviation of the noise on every parameter'
  ] = 0.0


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  epsilon, noise_scale = options.epsilon, options.noise_scale

  def weights(messages: tuple[()], ctx: AggregationCtx) -> dict[str, Array]:
    del messages
    members = ctx.members
    plain = aggregation.uniform(members)
    params, running = trees.trainable(ctx.start)

    def attended(name: str) -> Array:
      def norms(start: Array) -> Array:
        squares = (ctx.uploaded[name] - start) ** 2
        return jnp.sqrt(squares.reshape(len(squares), -1).sum(axis=1))

      distance = jnp.asarray(jax.lax.map(norms, ctx.start[name]))
      # Padded and lost uploads get no attention. The softmax of a group without
      # members is nan, which the selection below replaces.
      distance = jnp.where(members, distance, -jnp.inf)
      alpha = jax.nn.softmax(distance, axis=1)
      return epsilon * jnp.where(members, alpha, 0.0)

    return {n: attended(n) for n in params} | dict.fromkeys(running, plain)

  def perturb(
    state: tuple[()], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[()], Flat]:
    return state, privacy.on_updated(models, ctx, noise_scale)

  return Component(
    'fedatt',
    aggregation=Gather(weights),
    server=ServerHooks(update=perturb) if noise_scale else None,
    notice=privacy.NOTICE if noise_scale else '',
  )
