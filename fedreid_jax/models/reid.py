"""A re-identification network: backbone, pooling, neck and classifier.

The neck maps pooled features to embeddings, and the scores of padded identities
are masked.
"""

from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Number
from fedreid_jax.models import forward
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm

NeckKind = Literal['none', 'bn', 'bnneck', 'bottleneck', 'mapping']
# Finite, because the gradient of a softmax of an infinite logit is nan.
PADDED_LOGIT = -1e9
GEM_POWER = 3
Pool = Literal['gap', 'gem', 'flatten']


class ReIDNet(nn.Module):
  """Maps images to features, embeddings and identity scores.

  With T images for each row of the context, the pooled features of T images are
  averaged before the neck, and outputs are those of tracklets.

  The names of parameters begin with `params/backbone`, `params/neck` and
  `params/classifier`, so that a regular expression selects the shared ones.

  Attributes:
    backbone: maps `([B, H, W, ch], ctx)` to (`[R B, h, w, D]`, extras).
      The first `B` maps belong to the images; the others are computed from
      them in training. Extras are returned in the outputs.
  """

  backbone: nn.Module
  num_classes: int  # identities of the classifier, padding included
  pooling: str = 'gap'  # one of `POOLS`
  neck_kind: str = 'bn'  # a `NeckKind`
  bottleneck: int = 512  # features of the neck
  dropout: float = 0.5  # rate in the neck
  classifier_bias: bool = False
  norm_kind: str = 'batch'  # of the neck, a `norm.NormKind`

  def setup(self):
    """Builds the neck and the classifier."""
    self.neck = Neck(
      self.neck_kind, self.bottleneck, self.dropout, self.norm_kind
    )
    self.classifier = nn.Dense(
      self.num_classes,
      use_bias=self.classifier_bias,
      kernel_init=conv.normal(0.0, 0.001),
    )

  def __call__(
    self,
    images: Float[Array, 'M H W ch'],
    ctx: ForwardCtx,
    num_identities: Number | None = None,
  ) -> types.Outputs:
    """Runs the network on normalised images; its outputs are float32.

    Without a key `dropout` it trains without dropout.

    Args:
      num_identities: number of real identities, which come first; may be
        traced; None if all `num_classes` are real.
    """
    mask, frames = ctx.mask, forward.frames(images, ctx)
    if frames > 1:
      ctx = forward.of_frames(ctx, frames)
    if ctx.mask is not None:
      # Padded pixels may not be finite, and gradients of kernels multiply them
      # by zero.
      images = jnp.where(norm.per_sample(ctx.mask, images.ndim), images, 0)
    maps, extras = self.backbone(images, ctx)
    copies = maps.shape[0] // images.shape[0]
    size = images.shape[0] // frames
    if mask is not None:
      mask = jnp.tile(mask, copies)
    feature = POOLS[self.pooling](maps.astype(jnp.float32))
    if frames > 1:
      feature = feature.reshape(-1, frames, feature.shape[-1]).mean(1)
    embedding = self.neck(feature, train=ctx.train, mask=mask)
    every = types.Outputs(
      feature, embedding, self.classify(embedding, num_identities)
    )
    if copies > 1:
      extras = {**extras, 'copies': every}
    return types.Outputs(
      feature[:size], embedding[:size], every.logits[:size], extras
    )

  def classify(
    self,
    embedding: Float[Array, 'B D'],
    num_identities: Number | None = None,
  ) -> Float[Array, 'B C']:
    """Scores embeddings against the identities."""
    return mask_identities(self.classifier(embedding), num_identities)


class Neck(nn.Module):
  """Maps pooled features to embeddings, in float32.

  Attributes:
    kind: `bn` normalises without scale and bias, `bnneck` with (Luo et al.,
      "Bag of tricks and a strong baseline for deep person
      re-identification"); `bottleneck` is a linear layer, normalisation and
      dropout; `mapping` has a ReLU before the dropout (Wu and Gong,
      "Decentralised learning from independent multi-domain labels for person
      re-identification"); `none` is the identity.
  """

  kind: str
  bottleneck: int = 512  # features of `bottleneck` and `mapping`
  dropout: float = 0.5  # of `bottleneck` and `mapping`
  norm_kind: str = 'batch'  # a `norm.NormKind`

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B D2']:
    """Maps features; training without a key `dropout` has no dropout."""
    if self.kind == 'none':
      return x
    if self.kind == 'bn':
      bn = norm.layer(self.norm_kind, 'bn', affine=False)
      return bn(x, train=train, mask=mask)
    if self.kind == 'bnneck':
      init = conv.normal(1.0, 0.01)
      bn = norm.layer(self.norm_kind, 'bn', scale_init=init)
      return bn(x, train=train, mask=mask)
    x = nn.Dense(self.bottleneck, kernel_init=conv.kaiming_normal, name='fc')(x)
    init = conv.normal(1.0, 0.02)
    bn = norm.layer(self.norm_kind, 'bn', scale_init=init)
    x = bn(x, train=train, mask=mask)
    if self.kind == 'mapping':
      x = norm.relu(x)
    deterministic = not (train and self.has_rng('dropout'))
    return nn.Dropout(self.dropout, deterministic=deterministic)(x)


def mask_identities(
  logits: Float[Array, '*rows C'], num_identities: Number | None
) -> Float[Array, '*rows C']:
  """Sets the logits of padded identities, which come last, to `PADDED_LOGIT`.

  The number of identities may be traced; None means that all are real.
  """
  if num_identities is None:
    return logits
  real = jnp.arange(logits.shape[-1]) < num_identities
  return jnp.where(real, logits, PADDED_LOGIT)


def average(maps: Float[Array, 'B h w D']) -> Float[Array, 'B D']:
  """Averages maps over positions."""
  return maps.mean((1, 2))


def generalised_mean(maps: Float[Array, 'B h w D']) -> Float[Array, 'B D']:
  """Returns `(mean([x]_+^3) + 1e-12)^(1/3)` over positions.

  Radenovic et al., "Fine-tuning CNN image retrieval with no human
  annotation", with a fixed power; negative values count as zero.
  """
  # SNR makes maps negative, and the root of a negative mean is nan. The
  # gradient of the root at zero is infinite.
  cubes = jnp.maximum(maps, 0) ** GEM_POWER
  return (average(cubes) + 1e-12) ** (1 / GEM_POWER)


def flatten(maps: Float[Array, 'B h w D']) -> Float[Array, 'B h*w*D']:
  """Concatenates the features of all positions."""
  return maps.reshape(maps.shape[0], -1)


POOLS = {'gap': average, 'gem': generalised_mean, 'flatten': flatten}
