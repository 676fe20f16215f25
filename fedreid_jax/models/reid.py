"""A re-identification network: backbone, pooling, neck, classifier."""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.models import convnet, head, norm, pool, resnet

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}
NAMES = (*resnet.DEPTHS, 'convnet')


class ReIDNet(nn.Module):
  """Maps images to features, embeddings and identity scores.

  Parameters live under `params/backbone`, `params/neck`, `params/classifier`,
  so a regular expression over the paths says what is shared.

  Attributes:
    backbone: module mapping `[B, H, W, ch]` to `[B, h, w, D]`.
    num_classes: identities of the classifier, padding included.
    pool: one of `pool.CHOICES`.
    neck_kind: one of `head.NECKS`.
    bottleneck: features of the `bottleneck` neck.
    dropout: dropout rate of the `bottleneck` neck.
    classifier_bias: whether the classifier has a bias.
  """

  backbone: nn.Module
  num_classes: int
  pool: str = 'gap'
  neck_kind: str = 'bn'
  bottleneck: int = 512
  dropout: float = 0.5
  classifier_bias: bool = False

  def setup(self):
    self.neck = head.Neck(self.neck_kind, self.bottleneck, self.dropout)
    self.classifier = nn.Dense(
      self.num_classes,
      use_bias=self.classifier_bias,
      kernel_init=nn.initializers.normal(0.001),
    )

  def __call__(
    self, images, *, train: bool, num_identities=None, mask=None
  ) -> types.Outputs:
    """Runs the network; `train` with the `bottleneck` neck needs `dropout`.

    Args:
      images: float `[B, H, W, ch]`.
      train: batch statistics and dropout on.
      num_identities: real identities, logits beyond them are -1e9; may be
        traced; None if all `num_classes` are.
      mask: bool `[B]`, False for padded samples, which then enter no
        statistics, whatever they hold; None if all are real.
    """
    if mask is not None:
      images = jnp.where(norm.per_sample(mask, images.ndim), images, 0)
    maps = self.backbone(images, train=train, mask=mask)
    feature = pool.global_pool(maps, self.pool)
    embedding = self.neck(feature, train=train, mask=mask)
    logits = self.classify(embedding, num_identities)
    return types.Outputs(feature, embedding, logits)

  def classify(self, embedding, num_identities=None):
    """Scores embeddings `[B, D]` against the identities, `[B, C]`."""
    return head.mask_identities(self.classifier(embedding), num_identities)


def build(config: Any, num_classes: int) -> ReIDNet:
  """Builds the network a configuration describes.

  Args:
    config: has name, width, small_stem, last_stride, features, pool, neck,
      bottleneck, dropout, classifier_bias, dtype.
    num_classes: identities of the classifier, padded to the largest client.

  Raises:
    ConfigError: an unknown name, pool, neck or dtype.
  """
  _one_of('name', config.name, NAMES)
  _one_of('pool', config.pool, pool.CHOICES)
  _one_of('neck', config.neck, head.NECKS)
  _one_of('dtype', config.dtype, DTYPES)
  dtype = DTYPES[config.dtype]
  if config.name == 'convnet':
    backbone = convnet.ConvNet(tuple(config.features), dtype)
  else:
    backbone = resnet.ResNet(
      config.name, config.width, config.small_stem, config.last_stride, dtype
    )
  return ReIDNet(
    backbone,
    num_classes,
    config.pool,
    config.neck,
    config.bottleneck,
    config.dropout,
    config.classifier_bias,
  )


def _one_of(field: str, value, choices):
  if value not in choices:
    raise errors.ConfigError(
      f'unknown {field} {value!r}',
      f'model.{field}',
      f'choose from {", ".join(choices)}',
    )
