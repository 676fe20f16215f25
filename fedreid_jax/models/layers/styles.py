"""Modules that change the style of maps after a stage.

The style of an image is the mean and the standard deviation of each channel of
its maps. `MixStyle` mixes the styles of the images of a batch, `CrossStyle`
exchanges them, and `StyleTransfer` gives images a style that the caller
chooses. `MixStyle` and `CrossStyle` leave maps as they are in evaluation. None
has parameters.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Bool, Float, Float32, Int, Key

from fedreid_jax.core.types import Array
from fedreid_jax.models.layers import inserted, norm

# MixStyle: of the paper, and its places in networks for re-identification.
ALPHA, PROBABILITY, STAGES = 0.1, 0.5, (1, 2)
MIX_EPSILON = 1e-6  # added to a variance before its root, in MixStyle
CROSS_EPSILON = 1e-5  # likewise, in CrossNorm
CROSS_STAGES = (1,)
TRANSFER_EPSILON = 1e-5  # likewise, in AdaIN and CCST
TRANSFER_STAGE = 1
# Name of the module of `StyleTransfer`, of its extra, and of the collection of
# variables from which it reads a style.
TRANSFER, STYLES = 'style_transfer', 'styles'


class Style(NamedTuple):
  """Moments of every channel of maps."""

  mean: Float32[Array, 'B D']
  var: Float32[Array, 'B D']  # biased


def style_of(x: Float[Array, 'B h w D']) -> Style:
  """The style of each image, computed in float32."""
  return Style(*jax.vmap(norm.moments)(x.astype(jnp.float32)))


def restyled(
  x: Float[Array, 'B h w D'],
  own: Style,
  mean: Float32[Array, 'B D'],
  std: Float32[Array, 'B D'],
  epsilon: float,
  *,
  detached: bool = True,
) -> Float[Array, 'B h w D']:
  """Gives maps another style: `(x - own mean) / own std * std + mean`.

  The standard deviation of the maps is the root of their variance plus
  `epsilon`. No style has a gradient if they are `detached`.
  """
  if detached:
    own, mean, std = jax.lax.stop_gradient((own, mean, std))
  gain = std * jax.lax.rsqrt(own.var + epsilon)
  # A gain and a shift of each channel: no other map is formed.
  shift = mean - own.mean * gain
  maps = x.astype(jnp.float32) * gain[:, None, None] + shift[:, None, None]
  return maps.astype(x.dtype)


def draw_partners(
  key: Key[Array, ''], mask: Bool[Array, ' B']
) -> Int[Array, ' B']:
  """Draws a permutation of the real images; padded ones keep their place."""
  # Both lists have the real images first: in order, and in random order.
  rows = jnp.argsort(~mask)
  lots = jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0)
  return jnp.zeros_like(rows).at[rows].set(jnp.argsort(lots))


class MixStyle(nn.Module):
  """Mixes the style of each image with that of another image of the batch.

  Zhou et al., "Domain generalization with MixStyle", ICLR 2021. In training and
  with a probability for the whole batch, with the normalised maps x^ of image i
  and another image j, the result is

    (l std_i + (1 - l) std_j) x^ + l mean_i + (1 - l) mean_j,  l ~ Beta(a, a),

  where j is the place of i in a random permutation. Without a key `dropout`,
  and in evaluation, maps stay as they are.
  """

  alpha: float = ALPHA  # of the Beta distribution
  probability: float = PROBABILITY  # that a batch is mixed

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D']:
    """Mixes maps; those of padded images stay apart."""
    if not (train and self.has_rng('dropout')):
      return x
    size = x.shape[0]
    keys = jax.random.split(self.make_rng('dropout'), 3)
    real = jnp.ones(size, bool) if mask is None else mask
    partners = draw_partners(keys[0], real)
    share = jax.random.beta(keys[1], self.alpha, self.alpha, (size, 1))
    mixed = mixed_with(x, partners, share)
    # Drawn for the batch, not for each image.
    return jnp.where(jax.random.bernoulli(keys[2], self.probability), mixed, x)


def mixed_with(
  x: Float[Array, 'B h w D'],
  partners: Int[Array, ' B'],
  share: Float32[Array, 'B 1'],
) -> Float[Array, 'B h w D']:
  """Gives image i `share` of its own style and the rest of its partner's."""
  own = style_of(x)
  std = jnp.sqrt(own.var + MIX_EPSILON)
  return restyled(
    x,
    own,
    share * own.mean + (1 - share) * own.mean[partners],
    share * std + (1 - share) * std[partners],
    MIX_EPSILON,
  )


class CrossStyle(nn.Module):
  """Gives each image the style of another image of the batch.

  Tang et al., "CrossNorm and SelfNorm for generalization under distribution
  shifts", ICCV 2021, without crops. In training and with a probability for the
  whole batch, with the normalised maps x^ of image i and another image j, the
  result is `std_j x^ + mean_j`, where j is the place of i in a random
  permutation of the real images. Without a key `dropout`, and in evaluation,
  maps stay as they are.
  """

  probability: float = PROBABILITY  # that the styles of a batch are exchanged

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> Float[Array, 'B h w D']:
    """Exchanges styles; padded images keep theirs, and give it to none."""
    if not (train and self.has_rng('dropout')):
      return x
    keys = jax.random.split(self.make_rng('dropout'))
    real = jnp.ones(x.shape[0], bool) if mask is None else mask
    crossed = crossed_with(x, draw_partners(keys[0], real))
    # Drawn for the batch, not for each image.
    happens = jax.random.bernoulli(keys[1], self.probability)
    return jnp.where(happens, crossed, x)


def crossed_with(
  x: Float[Array, 'B h w D'], partners: Int[Array, ' B']
) -> Float[Array, 'B h w D']:
  """Gives each image the style of its partner, with gradients of both."""
  own = style_of(x)
  std = jnp.sqrt(own.var + CROSS_EPSILON)
  style = own.mean[partners], std[partners]
  return restyled(x, own, *style, CROSS_EPSILON, detached=False)


class StyleTransfer(nn.Module):
  """Gives images the style that the collection `styles` has, if it is given.

  This is AdaIN (Huang and Belongie, "Arbitrary style transfer in real-time with
  adaptive instance normalization", ICCV 2017). The collection has `mean` and
  `std`, `[B, D]` each, under the path of the module.
  """

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B h w D'],
    *,
    train: bool,
    mask: Bool[Array, ' B'] | None = None,
  ) -> tuple[Float[Array, 'B h w D'], dict[str, Style]]:
    """Returns the maps and `{TRANSFER: Style}`, their style before."""
    del train, mask  # each image is treated by itself
    own = style_of(x)
    if self.has_variable(STYLES, 'mean'):
      mean, std = (self.get_variable(STYLES, name) for name in ('mean', 'std'))
      x = restyled(x, own, mean, std, TRANSFER_EPSILON)
    return x, {TRANSFER: own}


def given(
  mean: Float32[Array, 'B D'], std: Float32[Array, 'B D']
) -> dict[str, Float32[Array, 'B D']]:
  """The variables from which a `StyleTransfer` in a backbone reads a style."""
  path = f'{STYLES}/backbone/{TRANSFER}'
  return {f'{path}/mean': mean, f'{path}/std': std}


def mix_after(
  alpha: float = ALPHA,
  probability: float = PROBABILITY,
  stages: Sequence[int] = STAGES,
) -> inserted.Rule:
  """Returns a rule for `plugins`: MixStyle ends some stages, from 1."""

  def rule(stage: int, block: int, num_blocks: int, channels: int):
    del channels
    if block + 1 < num_blocks or stage not in stages:
      return None
    return MixStyle(alpha, probability, name=f'mixstyle_{stage}')

  return rule


def cross_after(
  probability: float = PROBABILITY, stages: Sequence[int] = CROSS_STAGES
) -> inserted.Rule:
  """Returns a rule for `plugins`: CrossStyle ends some stages, from 1."""

  def rule(stage: int, block: int, num_blocks: int, channels: int):
    del channels
    if block + 1 < num_blocks or stage not in stages:
      return None
    return CrossStyle(probability, name=f'crossstyle_{stage}')

  return rule


def transfer_after(stage: int = TRANSFER_STAGE) -> inserted.Rule:
  """Returns a rule for `plugins`: a `StyleTransfer` ends one stage, from 1."""

  def rule(place: int, block: int, num_blocks: int, channels: int):
    del channels
    if block + 1 < num_blocks or place != stage:
      return None
    return StyleTransfer(name=TRANSFER)

  return rule
