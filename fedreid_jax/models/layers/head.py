"""Necks, from pooled features to embeddings, and masks of padded identities."""

from typing import Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float

from fedreid_jax.core.types import Array, Number
from fedreid_jax.models.layers import conv, norm, norm_kinds

NeckKind = Literal['none', 'bn', 'bnneck', 'bottleneck', 'mapping']
# Finite, because the gradient of a softmax of an infinite logit is nan.
PADDED_LOGIT = -1e9


def normal(mean: float, deviation: float):
  """Returns an initialiser that draws from N(mean, deviation^2)."""
  centred = nn.initializers.normal(deviation)

  def init(key, shape, dtype=jnp.float32):
    return mean + centred(key, shape, dtype)

  return init


class Neck(nn.Module):
  """Maps pooled features to embeddings, in float32.

  Attributes:
    kind: `bn` normalises without scale and bias, `bnneck` with (Luo et al.,
      "Bag of tricks and a strong baseline for deep person
      re-identification"); `bottleneck` is a linear layer, normalisation and
      dropout; `mapping` has a ReLU before the dropout (Wu and Gong,
      "Decentralised learning from independent multi-domain labels for person
      re-identification"); `none` is the identity.
    bottleneck: features of `bottleneck` and `mapping`.
    dropout: rate of `bottleneck` and `mapping`.
    norm_kind: one of `norm_kinds.NormKind`.
  """

  kind: str
  bottleneck: int = 512
  dropout: float = 0.5
  norm_kind: str = 'batch'

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B D2']:
    """Maps features to embeddings.

    Batch statistics are computed from the samples in `mask`. Training without a
    key `dropout` has no dropout.
    """
    if self.kind == 'none':
      return x
    if self.kind == 'bn':
      bn = norm_kinds.layer(self.norm_kind, 'bn', affine=False)
      return bn(x, train=train, mask=mask)
    if self.kind == 'bnneck':
      init = normal(1.0, 0.01)
      bn = norm_kinds.layer(self.norm_kind, 'bn', scale_init=init)
      return bn(x, train=train, mask=mask)
    x = nn.Dense(self.bottleneck, kernel_init=conv.kaiming_normal, name='fc')(x)
    init = normal(1.0, 0.02)
    bn = norm_kinds.layer(self.norm_kind, 'bn', scale_init=init)
    x = bn(x, train=train, mask=mask)
    if self.kind == 'mapping':
      x = norm.relu(x)
    deterministic = not (train and self.has_rng('dropout'))
    return nn.Dropout(self.dropout, deterministic=deterministic)(x)


def mask_identities(
  logits: Float[Array, '*rows C'], num_identities: Number | None
) -> Float[Array, '*rows C']:
  """Sets the logits of padded identities to `PADDED_LOGIT`.

  Args:
    logits: scores of the padded number of identities.
    num_identities: number of real identities, which come first; may be traced.
      None if all are real.
  """
  if num_identities is None:
    return logits
  real = jnp.arange(logits.shape[-1]) < num_identities
  return jnp.where(real, logits, PADDED_LOGIT)
