"""DNS: shifts of the feature space, and one classifier per domain.

Jiang et al., "Domain shifting: a generalized solution for heterogeneous
cross-modality person re-identification", ECCV 2024. A heterogeneous space
shift (HSS) gates the maps of the last two stages; in training a common space
shift (CSS) makes a second feature of every image, and each domain has a
classifier. The losses are in `algorithms.dns`.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core import quotients, types
from fedreid_jax.core.types import Array, Number
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm

# Parts that each modality has separately: the stem and two stages.
MODALITY_SPECIFIC_STAGES = 3
Streams = Literal['two_stream', 'one_stream']
DOMAINS: dict[str, tuple[str, ...]] = {
  'two_stream': ('visible', 'infrared'),
  'one_stream': ('common',),
}
REDUCTION, SMALLEST = 32, 8


class HeterogeneousShift(nn.Module):
  """Gates maps by coordinate attention to shifted maps (HSS).

  The shift of a channel is the outer product of two softmaxes, over the maxima
  of its rows and over the maxima of its columns. The attention (Hou et al.,
  "Coordinate attention for efficient mobile network design") is computed from
  the shifted maps, and its gates multiply the original maps.
  """

  dtype: Any = jnp.float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> tuple[Float[Array, 'B h w D'], dict[str, Float[Array, 'B D']]]:
    """Gates maps; the extra `average` is the mean over their positions."""
    h, w, channels = x.shape[1:]
    # A softmax sums to one, so the average of the outer product along one side
    # is the other factor divided by the length of the side.
    pooled = [
      x.mean(other) + _softmax(x.max(other)) / length
      for other, length in ((2, w), (1, h))
    ]
    y = jnp.concatenate(pooled, axis=1)[:, :, None]
    y = self._conv(max(SMALLEST, channels // REDUCTION), 'reduce')(y)
    bn = norm.BatchNorm(dtype=self.dtype, name='bn')
    y = nn.hard_swish(bn(y, train=train, mask=mask))
    rows = nn.sigmoid(self._conv(channels, 'rows')(y[:, :h]))
    columns = nn.sigmoid(self._conv(channels, 'columns')(y[:, h:]))
    x = x * columns.swapaxes(1, 2) * rows
    return x, {'average': x.mean((1, 2), dtype=jnp.float32)}

  def _conv(self, features: int, name: str):
    return conv.Conv(
      features, (1, 1), dtype=self.dtype, kernel_init=conv.uniform, name=name
    )


def _softmax(x):
  return quotients.softmax(x.astype(jnp.float32), 1)


class CommonShift(nn.Module):
  """Computes the shifted feature `MLP(g + softmax(g))` of the average `g`."""

  dropout: float
  expansion: int = 4  # width of the hidden layer over that of the feature

  @nn.compact
  def __call__(
    self, x: Float[Array, 'B D'], *, train: bool
  ) -> Float[Array, 'B D']:
    """Shifts averages; without a key `dropout` it trains without dropout."""
    dimension = x.shape[-1]
    deterministic = not (train and self.has_rng('dropout'))
    x = nn.LayerNorm(epsilon=1e-5, name='norm')(x + _softmax(x))
    for name, features in (
      ('hidden', self.expansion * dimension),
      ('shifted', dimension),
    ):
      x = nn.Dense(features, kernel_init=conv.uniform, name=name)(x)
      if name == 'hidden':
        x = nn.gelu(x, approximate=False)
      x = nn.Dropout(self.dropout, deterministic=deterministic)(x)
    return x


class DomainClassifier(nn.Module):
  """A linear classifier that returns its kernel.

  The loss computes scores with the kernel and with the moving average of it
  that a client keeps.
  """

  num_classes: int  # identities, padding included

  @nn.compact
  def __call__(self, embedding: Float[Array, 'B D']) -> Float[Array, 'D C']:
    """The kernel for embeddings."""
    shape = (embedding.shape[-1], self.num_classes)
    return self.param('kernel', conv.uniform, shape)


class DNS(nn.Module):
  """Adds the parts for training to a network with shifted maps.

  Attributes:
    network: a `reid.ReIDNet` of a ResNet with the rule `plugins`, pooled by
      `gem`, with `MODALITY_SPECIFIC_STAGES` modality-specific parts if there
      are two streams.
    domains: one of `DOMAINS`; leaves are `params/domain_visible/kernel`.
  """

  network: nn.Module
  num_classes: int  # identities of the classifiers, padding included
  domains: tuple[str, ...] = DOMAINS['two_stream']
  dropout: float = 0.01  # rate of the common space shift

  def setup(self):
    """Builds the common space shift and the classifiers."""
    # The leaves of the network keep their names, by which weights are found.
    nn.share_scope(self, self.network)
    self.css = CommonShift(self.dropout)
    self.domain = {d: DomainClassifier(self.num_classes) for d in self.domains}

  def __call__(
    self,
    images: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
    num_identities: Number | None = None,
  ) -> types.Outputs:
    """Runs the network; extras are given in training only.

    `shifted` are the features `[B, D]` in the common space, and `domains` are
    kernels `[D, C]` by name.
    """
    outputs = self.network(images, ctx, num_identities)
    if not (ctx.train or self.is_initializing()):
      return outputs._replace(extras={})
    return outputs._replace(
      extras={
        'shifted': self.css(outputs.extras['average'], train=ctx.train),
        'domains': {
          name: classifier(outputs.embedding)
          for name, classifier in self.domain.items()
        },
      }
    )

  def classify(
    self,
    embedding: Float[Array, 'B D'],
    num_identities: Number | None = None,
  ) -> Float[Array, 'B C']:
    """Scores embeddings against the identities."""
    return self.network.classify(embedding, num_identities)


def plugins(
  dtype: Any = jnp.float32,
) -> Callable[[int, int, int, int], HeterogeneousShift | None]:
  """The rule for `resnet.ResNet`: an HSS after stages 3 and 4."""

  def rule(stage: int, block: int, num_blocks: int, channels: int):
    del channels
    if stage < MODALITY_SPECIFIC_STAGES or block < num_blocks - 1:
      return None
    return HeterogeneousShift(dtype, name=f'hss_{stage}')

  return rule
