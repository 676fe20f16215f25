"""Necks, from pooled feature to embedding, and the padded classifier."""

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax import errors
from fedreid_jax.models import conv, norm

NECKS = ('bn', 'bnneck', 'bottleneck', 'none')
PADDED = -1e9


def normal(mean: float, deviation: float):
  """Returns an initialiser drawing from N(mean, deviation^2)."""

  def init(key, shape, dtype=jnp.float32):
    return mean + nn.initializers.normal(deviation)(key, shape, dtype)

  return init


class Neck(nn.Module):
  """Turns the pooled feature `[B, D]` into the embedding, in float32.

  Attributes:
    kind: `bn` normalises without affine; `bnneck` with (Luo et al., "Bag of
      tricks"); `bottleneck` is linear, normalisation, dropout; `none` nothing.
    bottleneck: features of `bottleneck`.
    dropout: its dropout rate.
  """

  kind: str
  bottleneck: int = 512
  dropout: float = 0.5

  @nn.compact
  def __call__(self, x, *, train: bool, mask=None):
    """Maps `[B, D]` to `[B, D']`."""
    if self.kind == 'none':
      return x
    if self.kind == 'bn':
      bn = norm.BatchNorm(affine=False, name='bn')
      return bn(x, train=train, mask=mask)
    if self.kind == 'bnneck':
      bn = norm.BatchNorm(scale_init=normal(1.0, 0.01), name='bn')
      return bn(x, train=train, mask=mask)
    if self.kind == 'bottleneck':
      x = nn.Dense(self.bottleneck, kernel_init=conv.kaiming_normal, name='fc')(
        x
      )
      bn = norm.BatchNorm(scale_init=normal(1.0, 0.02), name='bn')
      x = bn(x, train=train, mask=mask)
      return nn.Dropout(self.dropout, deterministic=not train)(x)
    raise errors.ConfigError(
      f'unknown neck {self.kind!r}',
      'model.neck',
      f'choose from {", ".join(NECKS)}',
    )


def mask_identities(logits, num_identities):
  """Sets the logits `[B, C]` of identities from `num_identities` on to -1e9.

  The value is finite so that a softmax over it has a zero gradient, not nan.

  Args:
    logits: scores of the padded number of identities.
    num_identities: how many are real, may be traced; None if all are.
  """
  if num_identities is None:
    return logits
  real = jnp.arange(logits.shape[-1]) < num_identities
  return jnp.where(real, logits, jnp.float32(PADDED))
