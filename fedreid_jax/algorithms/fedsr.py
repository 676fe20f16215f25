"""FedSR: simple representations, by a norm and a conditional information.

Nguyen, Torr and Lim, FedSR: A Simple and Effective Domain Generalization Method
for Federated Learning, NeurIPS 2022. The representation of an image is random,
z ~ p(z | x) = N(mu(x), diag sigma(x)^2), and the classifier and the losses of
the configuration see one sample of it. With a distribution r(z | y) =
N(mu_y, diag sigma_y^2) that is learned for every identity y, a client minimises

  L = L_ori(z) + l2r E |z|^2 + cmi E KL(p(z | x) || r(z | y)),

  KL = sum_d log(sigma_yd / sigma_d)
       + (sigma_d^2 + (mu_d - mu_yd)^2) / (2 sigma_yd^2) - 1/2.

The second term bounds the marginal distributions of the clients, the third one
I(x; z | y). The network is `models.probabilistic`: mu
is the embedding, sigma = softplus(W mu + b), and r(z | y) are personal
parameters like the classifier, because identities differ between clients.
Galleries are ranked by mu, without noise. The weights are those of the released
code for PACS.

Deviations from the paper: identities are personal, where the paper has the same
classes at all clients; mu has no layer of its own, so that the network that is
tested is that of the other methods, while the paper's last layer computes both
mu and sigma; a test uses mu in place of the mean score of several samples. A
triplet loss of the configuration is on samples as well. Deviations from the
released code: its second term is E |z|, not squared (`norm=euclidean`); it
multiplies mu and sigma in the third term by a learned number; its r(z | y) are
personal, too, since it averages the network and the classifier only.
"""

import dataclasses
from typing import Annotated, Literal

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import identity
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx
from fedreid_jax.models import changes
from fedreid_jax.models.probabilistic import GAUSSIANS, Gaussians, Probabilistic


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedSR."""

  l2r: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the norm of the representation'
  ] = 0.01
  cmi: Annotated[
    float,
    Range(0),
    Mark.STRENGTH,
    'weight of the divergence from the distribution of the identity',
  ] = 0.001
  norm: Annotated[
    Literal['squared', 'euclidean'],
    'norm of the representation: squared as in the paper, or not',
  ] = 'squared'


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def loss(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    found, valid = ctx.outputs.extras[GAUSSIANS], ctx.batch.valid
    squares = (ctx.outputs.embedding**2).sum(axis=1)
    if options.norm == 'euclidean':
      # The root has no gradient at 0, where padded images may be.
      squares = jnp.sqrt(jnp.maximum(squares, 1e-12))
    l2r = identity.masked_mean(squares, valid)
    each = divergence(found, ctx.batch.labels)
    cmi = identity.masked_mean(each, valid)
    metrics = {
      'l2r': l2r,
      'cmi': cmi,
      # Noise against signal: both are squares per image.
      'noise': identity.masked_mean((found.std**2).sum(axis=1), valid),
      'signal': identity.masked_mean((found.mean**2).sum(axis=1), valid),
    }
    total = jnp.float32(0.0)
    for weight, part in ((options.l2r, l2r), (options.cmi, cmi)):
      # A part of weight zero is not added: parameters that only it depends on
      # have no gradient, and so no weight decay.
      if weight:
        total += weight * part
    return total, metrics

  return Component(
    'fedsr',
    network=_network,
    client=ClientHooks(loss=loss),
    properties=('separable',),
  )


def divergence(found: Gaussians, labels: Array) -> Array:
  """`KL(p(z | x) || r(z | y))` of each image, `[B]`, by labels `[B]`."""
  mean, std = found.identity_mean[labels], found.identity_std[labels]
  squares = found.std**2 + (found.mean - mean) ** 2
  return (jnp.log(std / found.std) + squares / (2 * std**2) - 0.5).sum(axis=1)


def _network(network: nn.Module) -> nn.Module:
  return changes.wrap(
    network, 'fedsr', lambda net: Probabilistic(net, net.num_classes)
  )
