"""A network whose embedding is a normal distribution, for FedSR.

Nguyen, Torr and Lim, "FedSR: a simple and effective domain generalization
method for federated learning", NeurIPS 2022. The loss is in `algorithms.fedsr`.
"""

from typing import NamedTuple

import jax
from flax import linen as nn
from jaxtyping import Float, Float32

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Number
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv

GAUSSIANS = 'gaussians'  # name of the extra


class Gaussians(NamedTuple):
  """Normal distributions of independent features.

  `p(z | x)` of every image, and `r(z | y)` of every identity, padded ones
  included.
  """

  mean: Float32[Array, 'B D']
  std: Float32[Array, 'B D']
  identity_mean: Float32[Array, 'C D']
  identity_std: Float32[Array, 'C D']


class IdentityGaussians(nn.Module):
  """`r(z | y)`, of mean 0 and standard deviation softplus(1) at first."""

  num_classes: int  # identities, padding included

  @nn.compact
  def __call__(
    self, num_features: int
  ) -> tuple[Float32[Array, 'C D'], Float32[Array, 'C D']]:
    """Returns the mean and the standard deviation of every identity."""
    shape = (self.num_classes, num_features)
    mean = self.param('mean', nn.initializers.zeros, shape)
    raw = self.param('raw_std', nn.initializers.ones, shape)
    return mean, jax.nn.softplus(raw)


class GaussianHead(nn.Module):
  """Computes `p(z | x)` from its mean, and holds `r(z | y)`."""

  num_classes: int  # identities, padding included

  @nn.compact
  def __call__(self, mean: Float32[Array, 'B D']) -> Gaussians:
    """Returns both distributions; `sigma(x) = softplus(W mu(x) + b)`."""
    size = mean.shape[-1]
    layer = nn.Dense(size, kernel_init=conv.uniform, name='spread')
    # This name makes them personal, like the identities that they belong to.
    identities = IdentityGaussians(self.num_classes, name='classifier')
    return Gaussians(mean, jax.nn.softplus(layer(mean)), *identities(size))


class Probabilistic(nn.Module):
  """Samples the embedding of a network in training.

  The embedding mu(x) of the network is the mean of `p(z | x)`. In training the
  embedding and the scores are those of one sample z; in evaluation, and without
  a key `dropout`, those of mu(x).
  """

  network: nn.Module  # a `reid.ReIDNet`
  num_classes: int  # identities of the classifier, padding included

  def setup(self):
    """Builds the distributions."""
    # The leaves of the network keep their names, by which weights are found.
    nn.share_scope(self, self.network)
    self.gaussian = GaussianHead(self.num_classes)

  def __call__(
    self,
    images: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
    num_identities: Number | None = None,
  ) -> types.Outputs:
    """Runs the network; the extra `GAUSSIANS` is given in training only."""
    outputs = self.network(images, ctx, num_identities)
    if not (ctx.train or self.is_initializing()):
      return outputs
    found = self.gaussian(outputs.embedding)
    extras = {**outputs.extras, GAUSSIANS: found}
    if not (ctx.train and self.has_rng('dropout')):
      return outputs._replace(extras=extras)
    noise = jax.random.normal(self.make_rng('dropout'), found.mean.shape)
    sample = found.mean + found.std * noise
    logits = self.classify(sample, num_identities)
    return outputs._replace(embedding=sample, logits=logits, extras=extras)

  def classify(
    self,
    embedding: Float[Array, 'B D'],
    num_identities: Number | None = None,
  ) -> Float[Array, 'B C']:
    """Scores embeddings against the identities."""
    return self.network.classify(embedding, num_identities)
