"""A re-identification network: backbone, pooling, neck and classifier."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Int

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Number
from fedreid_jax.models.layers import head, norm, pool


class ReIDNet(nn.Module):
  """Maps images to features, embeddings and identity scores.

  The names of parameters begin with `params/backbone`, `params/neck` and
  `params/classifier`, so that a regular expression selects the shared ones.

  Attributes:
    backbone: module that maps `[B, H, W, ch]` to (`[R B, h, w, D]`, extras).
      The first `B` maps belong to the images; the others are computed from
      them in training. Extras are returned in the outputs.
    num_classes: identities of the classifier, padding included.
    pooling: one of `pool.POOLS`.
    neck_kind: one of `head.NeckKind`.
    bottleneck: features of the `bottleneck` neck.
    dropout: dropout rate of the `bottleneck` neck.
    classifier_bias: whether the classifier has a bias.
    norm_kind: normalisation of the neck, one of `norm_kinds.NormKind`.
  """

  backbone: nn.Module
  num_classes: int
  pooling: str = 'gap'
  neck_kind: str = 'bn'
  bottleneck: int = 512
  dropout: float = 0.5
  classifier_bias: bool = False
  norm_kind: str = 'batch'

  def setup(self):
    """Builds the neck and the classifier."""
    self.neck = head.Neck(
      self.neck_kind, self.bottleneck, self.dropout, self.norm_kind
    )
    self.classifier = nn.Dense(
      self.num_classes,
      use_bias=self.classifier_bias,
      kernel_init=head.normal(0.0, 0.001),
    )

  def __call__(
    self,
    images: Float[Array, 'B H W ch'],
    *,
    train: bool,
    num_identities: Number | None = None,
    mask: Bool[Array, ' B'] | None = None,
    modalities: Int[Array, ' B'] | None = None,
    labels: Int[Array, ' B'] | None = None,
  ) -> types.Outputs:
    """Runs the network; without a key `dropout` it trains without dropout.

    Args:
      images: normalised images.
      train: use batch statistics and dropout.
      num_identities: number of real identities, which are first; the logits of
        the others are -1e9; may be traced; None if all `num_classes` are real.
      mask: False for padded samples, which do not enter statistics; None if all
        are real.
      modalities: 0 visible, 1 infrared, for networks with modality-specific
        parts.
      labels: identities, for networks that align images in training.

    Returns:
      Features, embeddings and logits, all float32.
    """
    if mask is not None:
      # Padded pixels may not be finite, and gradients of kernels multiply them
      # by zero.
      images = jnp.where(norm.per_sample(mask, images.ndim), images, 0)
    maps, extras = self.backbone(
      images, train=train, mask=mask, modalities=modalities, labels=labels
    )
    size = images.shape[0]
    copies = maps.shape[0] // size
    if mask is not None:
      mask = jnp.tile(mask, copies)
    feature = pool.POOLS[self.pooling](maps.astype(jnp.float32))
    embedding = self.neck(feature, train=train, mask=mask)
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
    return head.mask_identities(self.classifier(embedding), num_identities)
