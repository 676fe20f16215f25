"""MOON: a contrastive loss pulls local features towards the global model's.

Li et al., Model-contrastive federated learning, CVPR 2021, eq. 3. Let z be the
feature of a batch, z_g the feature by the server's model and z_p the feature by
this client's model at the end of its last participation; both models are
frozen. Then

  l = -log [ e^{cos(z, z_g) / T} / (e^{cos(z, z_g) / T} + e^{cos(z, z_p) / T}) ]

and the local loss is L + mu mean_batch l. A client that takes part for the
first time has no previous model and l = 0. Each client keeps a copy of its
whole model. All three networks normalise with the moments of the batch, so that
z and z_g are equal at the first step of a round.

Deviations from the paper: z is the embedding that is ranked, not the output of
a separate projection head (later re-identification code does the same).
Deviations from the released code: it has both frozen networks in evaluation
mode, with their running moments.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms import local_models
from fedreid_jax.algorithms.local_models import LastModel
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import identity, metric
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of MOON."""

  mu: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the contrastive loss'
  ] = 1.0
  temperature: Annotated[
    float, Range(1e-6), 'temperature of the softmax of the contrastive loss'
  ] = 0.5


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  mu, temperature = options.mu, options.temperature

  def loss(
    variables: Flat, state: LastModel, ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    past, has_past = state

    def embed(own: Flat) -> Array:
      # Moments of the batch: running moments are averages or delayed, and
      # cosines of features computed with them would measure these errors.
      outputs, _ = ctx.model.measure(
        jax.lax.stop_gradient(own),
        ctx.batch.images,
        mask=ctx.batch.valid,
        modalities=ctx.batch.modalities,
        cameras=ctx.batch.cameras,
      )
      return outputs.embedding

    z = ctx.outputs.embedding
    # The server has no private parameters; this client's complete its model.
    near = metric.cosine(z, embed({**variables, **ctx.received}))
    far = metric.cosine(z, embed(past))
    # The formula for two candidates, without exponentials that overflow.
    each = jax.nn.softplus((far - near) / temperature)
    contrast = identity.masked_mean(each, ctx.batch.valid)
    # Before the first participation the state holds arbitrary values.
    contrast = jnp.where(has_past, contrast, 0.0)
    return mu * contrast, {'contrast': contrast}

  return Component(
    'moon',
    client=ClientHooks(
      init=local_models.none_yet,
      loss=loss,
      round_end=local_models.keep,
    ),
    properties=('anchored', 'label_free', 'separable'),
  )
