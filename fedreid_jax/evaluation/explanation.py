"""Why two images match: positions that carry their cosine similarity.

Let f and g be the vectors of a query and of an image of a gallery, as the
evaluation ranks them. Their similarity is

  s = <f, g> / (|f| |g|),

and u = g / (|f| |g|) is a constant while f is divided among the positions of
the query. A backbone gives maps x_p at P positions. With average pooling and a
neck whose batch normalisation uses running moments, the vector is affine,
f = A (1/P) sum_p x_p + b, and the similarity is exactly

  s = sum_p <A x_p, u> / P  +  <b, u>,

a part for each position and a constant, which belongs to no position. The
gallery image is divided in the same way, with u = f / (|f| |g|). Mirror images
(`evaluation.flip`) add their halves at mirrored positions.

The parts are the products of the maps with the gradient of <f, u>, and the
constant is <f, u> for maps of zeros, so that the same program explains heads
that are not affine (generalised means, the neck `mapping`, plug-ins): then the
parts and the constant differ from s by an error, which is stated. The head is
known to be affine if its gradient at the maps equals that at zeros. Stylianou
et al., "Visualizing deep similarity networks" (WACV 2019), have the products of
maps.

A network whose maps have one position is explained in squares of pixels by the
same rule, where zero is the mean colour. A vision transformer is explained by
attention rollout (Abnar and Zuidema, "Quantifying attention flow in
transformers", ACL 2020). Rollout alone depends on one image only. Here each
attention is weighted by the gradient of <f, u> (Chefer et al., "Generic
attention-model explainability for interpreting bi-modal and encoder-decoder
transformers", ICCV 2021), so that it depends on the pair:

  R <- R + mean over heads of [dA * A]_+ R,  R = I before the first block.

The row of the class token is relevance without a sign, which sums to nothing.

A picture that does not depend on the pair or on the weights explains nothing.
The controls are the rank correlations with the picture of a pair of strangers
and with that of a network whose weights are shuffled within each leaf (Adebayo
et al., "Sanity checks for saliency maps", NeurIPS 2018).
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int, Int32, UInt8

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.evaluation import inside

# 'exact' and 'gradient' divide among positions of the maps, and 'pixels' among
# squares of pixels.
Way = Literal['exact', 'gradient', 'pixels', 'rollout']
WAYS = get_args(Way)
AFFINE = 1e-5  # largest difference between gradients of an affine head
CELLS = 16  # single pixels are noise
SEED = 0  # of shuffled weights


class Side(NamedTuple):
  """The similarity divided among the positions of one image.

  Attributes:
    parts: of the similarity, or relevance for 'rollout', `[h, w]`.
    constant: the part of no position; 0 for 'rollout'.
    error: similarity less all parts; 0 for 'rollout', which divides no number.
  """

  parts: Float32[np.ndarray, 'h w']
  constant: float
  error: float

  @property
  def spread(self) -> Float32[np.ndarray, 'h w']:
    """The parts with an equal share of the constant each, `[h, w]`.

    Of an affine head these are `<A x_p + b, u> / P`: what the head makes of one
    position alone. They add up to the similarity, and a position below the mean
    of the training has a sign of its own.
    """
    return self.parts + np.float32(self.constant / self.parts.size)


class Explanation(NamedTuple):
  """The similarity of a query and another image, divided for each of them."""

  similarity: float  # cosine of their vectors
  way: Way
  query: Side
  other: Side


class Controlled(NamedTuple):
  """An explanation with its controls.

  Attributes:
    pair: of a query and another image.
    strangers: of the query and an image of another person.
    shuffled: of the pair after the weights are shuffled.
    by_stranger: rank correlation of the parts of the query in `strangers` with
      those in `pair`; nan where all parts are equal.
    by_shuffling: the same for `shuffled`, of the query and of the other image.
  """

  pair: Explanation
  strangers: Explanation
  shuffled: Explanation
  by_stranger: float
  by_shuffling: tuple[float, float]


# `(variables, uint8 images [2, H, W, ch], modalities [2] or None)`, the query
# first.
Explainer = Callable[..., Explanation]


def make(
  model: types.Model, view: inside.View, *, flip: bool, feature: str
) -> Explainer:
  """Builds the function that explains the similarity of two images.

  The arguments are those of `features.make_embedding`, whose vectors are
  compared. Without modalities both images are visible.
  """
  embedding = inside.Embedding(model, view, flip, feature)

  @jax.jit
  def divide(variables: Flat, images: Any, modalities: Any) -> _Divided:
    inputs = variables, images, modalities
    # A GPU rounds products of float32 to ten bits, and the sum would not hold.
    with jax.default_matmul_precision('highest'):
      maps = inside.maps(embedding, inputs)
      if maps is not None:
        return _products(maps, flip)
      attention = inside.attention(embedding, inputs)
      if attention is not None:
        return _rollout(attention, flip)
      found = _products(inside.pixels(embedding, inputs), flip, 'pixels')
      return found._replace(parts=_cells(found.parts))

  def explain(
    variables: Flat,
    images: UInt8[np.ndarray, '2 H W ch'],
    modalities: Int[np.ndarray, ' 2'] | None = None,
  ) -> Explanation:
    if modalities is None:
      modalities = np.zeros(2, np.int32)
    found = jax.device_get(divide(variables, images, modalities))
    similarity = float(found.similarity)
    way = WAYS[int(found.way)]
    sides = []
    for parts, constant in zip(found.parts, found.constants, strict=True):
      sums = float(parts.sum(dtype=np.float64)) + float(constant)
      error = 0.0 if way == 'rollout' else similarity - sums
      sides.append(Side(parts, float(constant), error))
    return Explanation(similarity, way, *sides)

  return explain


def controlled(
  explain: Explainer,
  variables: Flat,
  images: UInt8[np.ndarray, '3 H W ch'],
  modalities: Int[np.ndarray, ' 3'] | None = None,
) -> Controlled:
  """Explains a pair with its controls.

  `images` are the query, the other image and one of a stranger to the query.
  """
  if modalities is None:
    modalities = np.zeros(3, np.int32)
  pair = explain(variables, images[:2], modalities[:2])
  strangers = explain(variables, images[::2], modalities[::2])
  other = explain(shuffled(variables), images[:2], modalities[:2])
  return Controlled(
    pair,
    strangers,
    other,
    correlation(pair.query.parts, strangers.query.parts),
    (
      correlation(pair.query.parts, other.query.parts),
      correlation(pair.other.parts, other.other.parts),
    ),
  )


def shuffled(variables: Flat, seed: int = SEED) -> Flat:
  """Permutes the numbers within each parameter; statistics are unchanged."""
  rng = np.random.default_rng(seed)

  def permuted(leaf: Any) -> np.ndarray:
    values = np.asarray(leaf)
    return rng.permutation(values.ravel()).reshape(values.shape)

  return {
    name: permuted(leaf) if name.startswith('params/') else leaf
    for name, leaf in sorted(variables.items())
  }


def correlation(
  a: Float[np.ndarray, 'h w'], b: Float[np.ndarray, 'h w']
) -> float:
  """Returns Spearman's rank correlation, nan if either has equal values."""
  # SciPy's statistics take half a second to import.
  from scipy import stats

  ranks = [stats.rankdata(x) for x in (a, b)]
  if any(x.std() == 0 for x in ranks):
    return float('nan')
  return float(np.corrcoef(*ranks)[0, 1])


class _Divided(NamedTuple):
  """Results of the compiled program; rows are the query and the other image."""

  similarity: Float32[Array, '']
  parts: Float32[Array, '2 h w']
  constants: Float32[Array, ' 2']
  way: Int32[Array, '']  # index of `WAYS`


def _against(
  vectors: Float[Array, '2 D'],
) -> tuple[Float[Array, ''], Float[Array, '2 D']]:
  """Returns the cosine, and `u` of each of two vectors."""
  norms = jnp.linalg.norm(vectors, axis=1)
  u = vectors[::-1] / jnp.maximum(norms[0] * norms[1], 1e-12)
  return (vectors[0] * u[0]).sum(), u


def _joined(
  values: Sequence[Float[Array, '2 h w']], flip: bool
) -> Float[Array, '2 h w']:
  """Adds parts; those of mirror images, the second half, are mirrored back."""
  half = len(values) // 2 if flip else len(values)
  turned = [x[:, :, ::-1] for x in values[half:]]
  return sum([*values[:half], *turned], jnp.zeros_like(values[0]))


def _products(
  within: inside.Inside, flip: bool, otherwise: Way = 'gradient'
) -> _Divided:
  """Divides by products of values with gradients; `otherwise` if not exact."""
  values = within.values
  vectors, back = jax.vjp(within.vectors, values)
  similarity, u = _against(vectors)
  # Where the values are zero, an affine function has the same gradient.
  zeros = [jnp.zeros_like(x) for x in values]
  bias, back_at_zero = jax.vjp(within.vectors, zeros)

  def parts(pull: Callable[..., Any]) -> Float[Array, '2 h w']:
    (slopes,) = pull(u)
    pairs = zip(values, slopes, strict=True)
    return _joined([(x * slope).sum(-1) for x, slope in pairs], flip)

  own = parts(back)
  gap = jnp.abs(own - parts(back_at_zero)).sum((1, 2)).max()
  way = jnp.where(gap <= AFFINE, WAYS.index('exact'), WAYS.index(otherwise))
  return _Divided(similarity, own, (bias * u).sum(1), way.astype(jnp.int32))


def _cells(parts: Float[Array, '2 H W']) -> Float[Array, '2 h w']:
  """Sums over squares of pixels, of which `CELLS` are along the longer side."""
  longest = max(parts.shape[1:])

  def of(extent: int) -> Float[Array, 'cells extent']:
    """Which cell a row or column is in; cells differ by one pixel at most."""
    cells = min(extent, -(-CELLS * extent // longest))
    cell = np.arange(extent) * cells // extent
    return jnp.float32(np.arange(cells)[:, None] == cell)

  rows, columns = map(of, parts.shape[1:])
  return jnp.einsum('iy,byx,jx->bij', rows, parts, columns, precision='highest')


def _rollout(attention: inside.Attention, flip: bool) -> _Divided:
  """Follows the attention from the class token to the patches."""
  none = [jnp.zeros(shape) for shape in attention.shapes]
  vectors, back, weights = jax.vjp(attention.vectors, none, has_aux=True)
  similarity, u = _against(vectors)
  (slopes,) = back(u)
  relevant = [
    jnp.maximum(slope * own, 0).mean(1)  # over heads
    for slope, own in zip(slopes, weights, strict=True)
  ]
  rows, columns = attention.grid
  blocks = len(relevant) // (2 if flip else 1)
  maps = []
  for first in range(0, len(relevant), blocks):
    flow = _flow(relevant[first : first + blocks], attention.prompts)
    patches = flow[:, 0, -rows * columns :]  # of the class token
    maps.append(patches.reshape(2, rows, columns))
  zeros = jnp.zeros(2, jnp.float32)
  way = jnp.int32(WAYS.index('rollout'))
  return _Divided(similarity, _joined(maps, flip), zeros, way)


def _flow(
  relevant: Sequence[Float[Array, 'B T T']], prompts: int = 0
) -> Float[Array, 'B T T']:
  """Relevance of each first token to each last one, through all blocks.

  `prompts` tokens after the class token are new in each block.
  """
  flow = jnp.broadcast_to(jnp.eye(relevant[0].shape[-1]), relevant[0].shape)
  for block, weights in enumerate(relevant):
    if block:  # new prompts have seen no patch
      flow = flow.at[:, 1 : 1 + prompts].set(0)
    flow = flow + weights @ flow
  return flow
