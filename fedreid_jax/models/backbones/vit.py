"""Vision transformers for persons, in the names of timm and TransReID.

Dosovitskiy et al., "An image is worth 16x16 words" (ICLR 2021): patches of the
image, a class token, learned positions, and blocks

  x + attention(norm(x)),  then  x + mlp(norm(x)).

He et al., "TransReID: transformer-based object re-identification" (ICCV 2021),
let patches overlap (`stride` below the size of a patch), and add to all tokens
in training a learned embedding of the camera, times `camera_weight`. Embeddings
belong to the cameras of a client (`algorithms.fedpav`), and images of other
cameras get none, as all images in evaluation; TransReID tests on the cameras of
the training. Jia et al., "Visual prompt tuning" (ECCV 2022), insert learned
tokens before each block (`prompts`, VPT-deep), which are trained alone with
`model.trained=.*prompt`. Darcet et al., "Vision transformers need registers"
(ICLR 2024), insert learned tokens without a position behind the class token
(`registers`). Siméoni et al., "DINOv3" (2025), rotate queries and keys by the
place of their patch in the image in place of learned positions (`rope`), and
their keys have no bias. Components insert modules for the map of the patches
after their positions, the end of the only stage (`models.changes`); the class
token keeps its values. The feature is the normalised class token, so that
pooling has one position to pool. There is no batch normalisation: clients share
no running statistics.

Prompts of parts of the body (`part_prompts`) attend to their part of the image
only (`models.layers.body_prompts`).
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.typing import Initializer
from jaxtyping import Bool, Float, Float32

from fedreid_jax import errors
from fedreid_jax.core import quotients
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.models.layers import body_prompts, conv, inserted
from fedreid_jax.models.options import Model

EPSILON = 1e-6
CLIP_EPSILON = 1e-5  # of all its layers, and of those of DINOv3
PLACE = (1, 0, 1)  # stage, block and blocks of the stage of the plug-ins
LONGEST = 100.0  # period of the slowest rotation; a side of the image is 2


class Size(NamedTuple):
  """Size of a transformer."""

  width: int
  blocks: int
  heads: int
  patch: int = 16  # side in pixels


SIZES = {
  'tiny': Size(64, 4, 4, 8),  # for small images on a laptop
  's16': Size(384, 12, 6),
  'b16': Size(768, 12, 12),
  'l16': Size(1024, 24, 16),
  's14': Size(384, 12, 6, 14),  # of DINOv2, as the next two
  'b14': Size(768, 12, 12, 14),
  'l14': Size(1024, 24, 16, 14),
}


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the transformer."""

  size: Annotated[
    Literal['tiny', 's16', 'b16', 'l16', 's14', 'b14', 'l14'],
    'size of the network',
  ] = 'tiny'
  stride: Annotated[
    int, Range(0), 'distance of patches in pixels; 0: side of a patch'
  ] = 0
  cameras: Annotated[
    int, Range(0), 'number of embeddings of cameras; 0 for none'
  ] = 0
  camera_weight: Annotated[
    float, Range(0), 'weight of the embedding of a camera'
  ] = 3.0
  drop_path: Annotated[
    float, Range(0, 1), 'largest probability that a block is skipped'
  ] = 0.0
  prompts: Annotated[
    int,
    Range(0),
    Mark.PRETRAINED,
    'number of learned tokens before each block',
  ] = 0
  part_prompts: Annotated[
    body_prompts.Groups,
    Range(0),
    'numbers of learned tokens before each block for the upper, the middle and '
    'the lower part of an image and for all of it, such as (10, 10, 10, 20); '
    'zeros for none',
  ] = (0, 0, 0, 0)
  layer_scale: Annotated[
    bool, 'whether branches have a learned scale, as those of DINOv2'
  ] = False
  pre_norm: Annotated[
    bool, 'whether tokens are normalised before the blocks, as those of CLIP'
  ] = False
  quick_gelu: Annotated[
    bool, "whether the activation is CLIP's x * sigmoid(1.702 x)"
  ] = False
  registers: Annotated[
    int,
    Range(0),
    'number of learned tokens without a position behind the class token, as '
    'those of DINOv2 with registers',
  ] = 0
  rope: Annotated[
    bool,
    'whether queries and keys are rotated by the place of their patch, as in '
    'DINOv3, in place of learned positions',
  ] = False

  def __post_init__(self) -> None:
    """Checks the values."""
    super().__post_init__()
    if self.prompts and any(self.part_prompts):
      raise errors.ConfigError(
        f'{self.prompts} prompts beside those of vit.part_prompts',
        'vit.prompts',
        'set it to 0, and count them as the fourth number of vit.part_prompts',
      )

  @property
  def num_prompts(self) -> int:
    """Number of prompts of either kind before each block."""
    return self.prompts + sum(self.part_prompts)


def _norm(name: str, options: Options) -> nn.LayerNorm:
  epsilon = CLIP_EPSILON if options.pre_norm or options.rope else EPSILON
  # Moments in float32; the fast variance loses its digits for a large mean.
  return nn.LayerNorm(
    epsilon, dtype=jnp.float32, use_fast_variance=False, name=name
  )


def angles(grid: tuple[int, int], width: int) -> Float[np.ndarray, 'n d']:
  """The angles by which queries and keys of patches are rotated, in radians.

  A place is in -1 to 1 along each side of the image, whatever its size.

  Args:
    grid: rows and columns of patches.
    width: features of a head, a multiple of four.
  """
  quarter = width // 4
  periods = LONGEST ** (np.arange(quarter) / quarter)
  sides = [(2 * np.arange(n) + 1) / n - 1 for n in grid]
  places = np.stack(np.meshgrid(*sides, indexing='ij'), -1).reshape(-1, 2, 1)
  both = (2 * np.pi * places / periods).reshape(-1, 2 * quarter)
  return np.tile(both, 2).astype(np.float32)


def rotated(
  x: Float[Array, 'B T heads d'], by: Float[np.ndarray, 'n d']
) -> Float[Array, 'B T heads d']:
  """Rotates the last `n` tokens, which are those of patches."""
  first, patches = x[:, : -len(by)], x[:, -len(by) :].astype(jnp.float32)
  a, b = jnp.split(patches, 2, -1)
  cos, sin = (f(by)[None, :, None] for f in (np.cos, np.sin))
  turned = patches * cos + jnp.concatenate([-b, a], -1) * sin
  return jnp.concatenate([first, turned.astype(x.dtype)], 1)


class KeysWithoutBias(nn.Module):
  """The projection for q, k and v of DINOv3, whose bias of k has no effect."""

  dtype: Any

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D3']:
    """Maps each token to `3 D` features."""
    d = x.shape[-1]
    kernel = self.param('kernel', _INIT, (d, 3 * d))
    bias = self.param('bias', nn.initializers.zeros, (3 * d,))
    bias = bias * np.repeat(np.array([1, 0, 1], np.float32), d)
    return x @ kernel.astype(self.dtype) + bias.astype(self.dtype)


class Attention(nn.Module):
  """Multi-head self-attention with one projection for q, k and v.

  Attributes:
    heads: number of heads.
    dtype: type of the computation; the softmax is float32.
  """

  heads: int
  dtype: Any

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B T D'],
    by: Float[np.ndarray, 'n d'] | None = None,
    allowed: Bool[np.ndarray, 'T T'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Attends between the tokens of an image, with `angles` for `rope`.

    `allowed` says to which tokens each one attends; None: to all.
    """
    b, t, d = x.shape
    if by is None:
      dense = nn.Dense(3 * d, dtype=self.dtype, kernel_init=_INIT, name='qkv')
      qkv = dense(x)
    else:
      qkv = KeysWithoutBias(self.dtype, name='qkv')(x)
    q, k, v = jnp.moveaxis(qkv.reshape(b, t, 3, self.heads, -1), 2, 0)
    if by is not None:
      q, k = rotated(q, by), rotated(k, by)
    weights = self.weights(q, k, allowed).astype(self.dtype)
    y = jnp.einsum('bhqk,bkhd->bqhd', weights, v).reshape(b, t, d)
    return nn.Dense(d, dtype=self.dtype, kernel_init=_INIT, name='proj')(y)

  # A method, so that `evaluation.inside` can intercept it.
  def weights(
    self,
    q: Float[Array, 'B T h d'],
    k: Float[Array, 'B T h d'],
    allowed: Bool[np.ndarray, 'T T'] | None = None,
  ) -> Float32[Array, 'B h T T']:
    """How much each token attends to each other one."""
    scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) * q.shape[-1] ** -0.5
    scores = scores.astype(jnp.float32)
    if allowed is not None:  # each token may attend to itself
      scores = jnp.where(allowed, scores, -jnp.inf)
    return quotients.softmax(scores)


_INIT = nn.initializers.truncated_normal(0.02)


class Mlp(nn.Module):
  """Two linear layers with a GELU between them, four times wider inside."""

  quick_gelu: bool
  dtype: Any

  @nn.compact
  def __call__(self, x: Float[Array, 'B T D']) -> Float[Array, 'B T D']:
    """Maps each token."""
    d = x.shape[-1]
    y = nn.Dense(4 * d, dtype=self.dtype, kernel_init=_INIT, name='fc1')(x)
    if self.quick_gelu:
      y = y * nn.sigmoid(1.702 * y)
    else:
      y = nn.gelu(y, approximate=False)
    return nn.Dense(d, dtype=self.dtype, kernel_init=_INIT, name='fc2')(y)


class Block(nn.Module):
  """Attention and a perceptron, each added to its input.

  Attributes:
    heads: heads of the attention.
    skip: probability that a branch of an image is left out in training.
    options: of the transformer.
    dtype: type of the computation.
  """

  heads: int
  skip: float
  options: Options
  dtype: Any

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B T D'],
    by: Float[np.ndarray, 'n d'] | None = None,
    allowed: Bool[np.ndarray, 'T T'] | None = None,
    *,
    train: bool,
  ) -> Float[Array, 'B T D']:
    """Maps the tokens of images, with the arguments of the attention."""

    def added(x, branch: Callable[[Array], Array], number: int):
      y = branch(_norm(f'norm{number}', self.options)(x).astype(self.dtype))
      if self.options.layer_scale:
        scale = nn.initializers.constant(1e-5)
        name = f'ls{number}_gamma'
        y = y * self.param(name, scale, y.shape[-1:]).astype(self.dtype)
      # Stochastic depth (Huang et al., ECCV 2016), by image. Without a key
      # there is none, as for dropout.
      if train and self.skip and self.has_rng('dropout'):
        kept = jax.random.bernoulli(
          self.make_rng('dropout'), 1 - self.skip, (x.shape[0], 1, 1)
        )
        y = jnp.where(kept, y / (1 - self.skip), 0)
      return x + y.astype(x.dtype)

    attention = Attention(self.heads, self.dtype, name='attn')
    x = added(x, lambda y: attention(y, by, allowed), 1)
    return added(x, Mlp(self.options.quick_gelu, self.dtype, name='mlp'), 2)


class ViT(nn.Module):
  """Maps images to the class token, as a map of one position.

  Attributes:
    options: of the transformer.
    dtype: type of the computation; the residual stream has it too.
    plugins: gives modules for the map of patches after their positions, as
      those of the only stage of one block.
  """

  options: Options = Options()
  dtype: Any = jnp.float32
  plugins: tuple[inserted.Rule, ...] = ()

  @nn.compact
  def __call__(
    self,
    x: Float[Array, 'B H W ch'],
    ctx: ForwardCtx,
  ) -> tuple[Float[Array, 'B 1 1 D'], dict]:
    """Maps `[B, H, W, ch]` to (`[B, 1, 1, D]`, extras of the plug-ins)."""
    extras: dict = {}
    size = SIZES[self.options.size]
    stride = self.options.stride or size.patch
    x = conv.Conv(
      size.width,
      (size.patch, size.patch),
      stride,
      use_bias=not self.options.pre_norm,  # CLIP's patches have no bias
      dtype=self.dtype,
      kernel_init=_INIT,
      name='patch_embed_proj',
    )(x)
    _, rows, columns, _ = x.shape
    tokens = x.reshape(x.shape[0], -1, size.width)
    tokens = jnp.concatenate([self._learned('cls_token', 1, x), tokens], axis=1)
    by = None
    if self.options.rope:
      by = angles((rows, columns), size.width // size.heads)
    else:
      positions = self.param('pos_embed', _INIT, (1, *tokens.shape[1:]))
      tokens = tokens + positions.astype(tokens.dtype)
    if self.plugins:
      maps = tokens[:, 1:].reshape(x.shape)
      maps = inserted.after(self.plugins, PLACE, maps, ctx, extras)
      patches = maps.reshape(tokens[:, 1:].shape)
      tokens = jnp.concatenate([tokens[:, :1], patches], axis=1)
    if self.options.cameras:
      tokens = self._with_cameras(tokens, ctx.cameras)
    if count := self.options.registers:
      parts = [tokens[:, :1], self._learned('reg_token', count, x)]
      tokens = jnp.concatenate([*parts, tokens[:, 1:]], axis=1)
    if self.options.pre_norm:
      tokens = _norm('norm_pre', self.options)(tokens).astype(self.dtype)
    allowed = None
    if any(groups := self.options.part_prompts):
      count = self.options.registers
      allowed = body_prompts.may_attend((rows, columns), groups, count)
    skips = np.linspace(0, self.options.drop_path, size.blocks).tolist()
    for i, skip in enumerate(skips):
      block = Block(
        size.heads, skip, self.options, self.dtype, name=f'blocks_{i}'
      )
      tokens = self._prompted(tokens, i)
      tokens = block(tokens, by, allowed, train=ctx.train)
    return _norm('norm', self.options)(tokens[:, :1])[:, :, None], extras

  def _learned(
    self, name: str, count: int, x: Array, init: Initializer = _INIT
  ) -> Array:
    """Learned tokens, `[B, count, D]`, for the images of `x`, `[B, ..., D]`."""
    shape = (x.shape[0], count, x.shape[-1])
    token = self.param(name, init, (1, *shape[1:]))
    return jnp.broadcast_to(token.astype(x.dtype), shape)

  def _with_cameras(self, tokens: Array, cameras: Array | None) -> Array:
    """Adds the embeddings of cameras; a camera without one adds nothing."""
    shape = self.options.cameras, tokens.shape[-1]
    table = self.param('camera_embed', _INIT, shape)
    if cameras is None:
      return tokens
    rows = jnp.take(table, cameras, axis=0, mode='fill', fill_value=0)
    added = self.options.camera_weight * rows[:, None]
    return tokens + added.astype(tokens.dtype)

  def _prompted(self, tokens: Array, block: int) -> Array:
    """Inserts the prompts of a block, in place of those of the last one."""
    if not (count := self.options.num_prompts):
      return tokens
    size, init = SIZES[self.options.size], _INIT
    if not self.options.prompts:
      init = body_prompts.initial(size.patch, size.width)
    prompt = self._learned(f'prompt_{block}', count, tokens, init)
    rest = tokens[:, 1 + (count if block else 0) :]
    return jnp.concatenate([tokens[:, :1], prompt, rest], axis=1)


def make(config: Model, options: Options = Options()) -> ViT:
  """Returns a transformer that computes in `config.dtype`."""
  return ViT(options, jnp.dtype(config.dtype))
