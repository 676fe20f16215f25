"""Modules of published networks between the blocks of a backbone.

`NonLocal` is the block of AGW (Ye et al., "Deep learning for person re-
identification: a survey and outlook"), which has no softmax. `SNR` is style
normalisation and restitution (Jin et al., "Style normalization and restitution
for generalizable person re-identification", CVPR 2020), after a stage.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jaxtyping import Bool, Float, Float32

from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import conv, norm

# `(stage from 1, block from 0, blocks of the stage, channels) -> module` or
# None; called as `module(x, train=, mask=)`, it returns maps or (maps, extras).
Rule = Callable[[int, int, int, int], nn.Module | None]
# Number of last blocks of a stage that are followed by a non-local block.
LAST_BLOCKS = {2: 2, 3: 3}
REDUCTION = 16


def after(
  rules: Sequence[Rule],
  place: tuple[int, int, int],  # stage, block and blocks, as in a `Rule`
  x: Float[Array, 'B h w D'],
  ctx: ForwardCtx,
  extras: dict,
) -> Float[Array, 'B h w D']:
  """Applies the modules of the rules for the place after a block, in order."""
  for rule in rules:
    module = rule(*place, x.shape[-1])
    if module is None:
      continue
    made = module(x, train=ctx.train, mask=ctx.mask)
    if isinstance(made, tuple):
      made, more = made
      extras |= more
    x = made
  return x


class NonLocal(nn.Module):
  """Computes `x + BN(W y)` with `y_i = 1/P sum_j (theta(x_i).phi(x_j)) g(x_j)`.

  `P` is the number of positions. The scale of BN starts at 0, so that the block
  is at first an exact identity.
  """

  inter_channels: int = 1  # of `theta`, `phi` and `g`
  dtype: Any = jnp.float32  # except for the products, which are in float32

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D']:
    """Adds the weighted sums to maps."""

    def project(x, features, name):
      return conv.Conv(
        features,
        (1, 1),
        use_bias=True,
        dtype=self.dtype,
        kernel_init=conv.uniform,
        name=name,
      )(x)

    theta, phi, value = (
      project(x, self.inter_channels, name).astype(jnp.float32)
      for name in ('theta', 'phi', 'g')
    )
    positions = x.shape[1] * x.shape[2]
    # Without a softmax the sum over j is a small matrix common to all i, so no
    # P x P attention is ever formed.
    common = jnp.einsum('bhwp,bhwq->bpq', phi, value) / positions
    y = jnp.einsum('bhwp,bpq->bhwq', theta, common)
    y = project(y, x.shape[-1], 'w')
    # Scale 0, so that a pretrained trunk is unchanged at the start.
    bn = norm.BatchNorm(
      dtype=self.dtype, scale_init=nn.initializers.zeros, name='bn'
    )
    return x + bn(y, train=train, mask=mask)


def after_last_blocks(
  inter_channels: int = 1, dtype: Any = jnp.float32
) -> Callable[[int, int, int, int], NonLocal | None]:
  """Returns AGW's rule for the `plugins` of `resnet.ResNet`.

  A block follows each of the last two blocks of stage 2 and of the last three
  of stage 3, or all of them if a stage has fewer: five in ResNet-50. AGW's
  published models have 1 inner channel.
  """

  def rule(stage: int, block: int, num_blocks: int, channels: int):
    del channels
    if block < num_blocks - LAST_BLOCKS.get(stage, 0):
      return None
    return NonLocal(inter_channels, dtype, name=f'non_local_{stage}_{block}')

  return rule


class StyleFeatures(NamedTuple):
  """Maps of a stage, averaged over positions.

  `logits` are the identity scores of the three in this order, padded identities
  included; None without a classifier.
  """

  normalised: Float32[Array, 'B D']  # of `F~`, without style
  enhanced: Float32[Array, 'B D']  # of `F~+`, with the relevant style
  contaminated: Float32[Array, 'B D']  # of `F~-`, with the other style
  logits: Float32[Array, '3 B C'] | None


class SNR(nn.Module):
  """Removes the style of maps and restores a part of it.

  With `F~` the maps normalised by the mean and variance of each channel of each
  image, scaled and shifted, `R = F - F~` and a gate `a` between 0 and 1,

    F~+ = F~ + a R,   F~- = F~ + (1 - a) R,
    a = sigmoid(W2 relu(W1 GAP(R) + b1) + b2), D -> D / 16 -> D.

  With `b` the bias of the normalisation, the averages in `StyleFeatures` are
  `b`, the same for every image, `b + a (GAP(F) - b)` and
  `b + (1 - a) (GAP(F) - b)`.
  """

  stage: int  # from 1
  # Identities of a linear classifier, padding included; None for no classifier.
  num_classes: int | None = None

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> tuple[Float[Array, 'B h w D'], dict[str, StyleFeatures]]:
    """Returns `F~+` and `{'snr_STAGE': StyleFeatures}`."""
    del train, mask  # each image is normalised by itself, also in a test
    shape = (x.shape[-1],)
    scale = self.param('scale', nn.initializers.ones, shape)
    bias = self.param('bias', nn.initializers.zeros, shape)
    wide = x.astype(jnp.float32)
    mean, var = jax.vmap(norm.moments)(wide)
    style = mean - bias
    gate = self._gate(style)
    slope = lax.rsqrt(var + norm.EPSILON) * scale
    # A channel of an image has one gate, mean and variance, so F~+ is F times a
    # gain plus a shift, and no other map is formed.
    gain = gate + (1 - gate) * slope
    shift = (1 - gate) * (bias - mean * slope)
    maps = wide * gain[:, None, None] + shift[:, None, None]
    restored = jnp.stack([jnp.zeros_like(gate), gate, 1 - gate])
    # Averaging is linear, and GAP(F~) is the bias exactly: a computed average
    # would start as rounding errors, and the loss as the cosine of these.
    averages, logits = bias + restored * style, None
    normalised, enhanced, contaminated = averages
    if self.num_classes is not None:
      logits = nn.Dense(
        self.num_classes, kernel_init=conv.normal(0.0, 0.01), name='classifier'
      )(averages)
    features = StyleFeatures(normalised, enhanced, contaminated, logits)
    return maps.astype(x.dtype), {f'snr_{self.stage}': features}

  def _gate(self, style):
    features = style.shape[-1]
    hidden = nn.Dense(
      max(features // REDUCTION, 1),
      kernel_init=conv.kaiming_normal,
      name='reduce',
    )(style)
    gate = nn.Dense(features, kernel_init=conv.kaiming_normal, name='expand')
    return nn.sigmoid(gate(norm.relu(hidden)))


def after_stages(num_classes: int | None = None) -> Rule:
  """Returns a rule for `plugins`: an SNR `snr_STAGE` ends every stage."""

  def rule(stage: int, block: int, num_blocks: int, channels: int):
    del channels
    if block + 1 < num_blocks:
      return None
    return SNR(stage, num_classes, name=f'snr_{stage}')

  return rule
