"""MOON: local features stay near the global model's, away from their own past.

Li et al., Model-contrastive federated learning, CVPR 2021, eq. 3. With z the
feature of a batch, z_g that of the server's model and z_p that of this client's
model at the end of its last participation, both frozen,

  l = -log [ e^{cos(z, z_g) / T} / (e^{cos(z, z_g) / T} + e^{cos(z, z_p) / T}) ]

and the local loss is L + mu mean_batch l. A client that takes part for the
first time has no past and l = 0. A client keeps a copy of its whole model. All
three networks normalise with the moments of the batch, so that at the first
step of a round z and z_g are equal: running moments are averages or delayed,
and cosines with features made with them would measure that.

Deviations from the paper: z is the embedding that is ranked, not the output of
a projection head made for the purpose (as later re-identification code does
it). Deviations from the released code: it has both frozen networks in
evaluation mode, with their running moments.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp

from fedreid_jax.core.component import ClientHooks, Component
from fedreid_jax.core.contexts import LossCtx
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.losses import identity, similarity


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of MOON."""

  mu: Annotated[float, Range(0), 'weight of the contrastive loss'] = 1.0
  temperature: Annotated[float, Range(1e-6), 'of its softmax'] = 0.5


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  mu, temperature = options.mu, options.temperature

  def loss(variables, state, ctx: LossCtx):
    past, has_past = state

    def embed(own):
      outputs, _ = ctx.model.measure(
        jax.lax.stop_gradient(own),
        ctx.batch.images,
        mask=ctx.batch.valid,
        modalities=ctx.batch.modalities,
      )
      return outputs.embedding

    z = ctx.outputs.embedding
    near = similarity.cosine(z, embed({**variables, **ctx.received}))
    far = similarity.cosine(z, embed(past))
    each = jax.nn.softplus((far - near) / temperature)
    contrast = identity.masked_mean(each, ctx.batch.valid)
    contrast = jnp.where(has_past, contrast, 0.0)
    return mu * contrast, {'contrast': contrast}

  return Component(
    'moon',
    client=ClientHooks(
      init=lambda key, variables: (variables, jnp.bool_(False)),
      loss=loss,
      round_end=lambda state, ctx: ((ctx.variables, jnp.bool_(True)), ()),
    ),
  )
