"""Hallucinates features of unseen domains from statistics of known domains.

Yang et al., DFH, section 3.2, and the mixups of its ablation (table 2).
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Key

from fedreid_jax.core import quotients
from fedreid_jax.core.types import Array

Novel = Literal['dirichlet', 'dirichlet_mixup', 'feature_mixup', 'none']
Negative = Literal['clamp', 'abs', 'resample', 'mean']
Mix = Literal['batch', 'sample']
Own = Literal['raw', 'hallucinated']
FLOOR = 1e-6


class Drawn(NamedTuple):
  """Statistics drawn for every domain.

  `dead` is the fraction of variances in channels whose mean variance is below
  1e-6, which do not vary within an identity; `negative` is the fraction of
  variances in other channels that were drawn below 1e-6.
  """

  means: Float[Array, 'N D']  # `M_k`
  variances: Float[Array, 'N D']  # `V_k`, at least 1e-6
  dead: Float[Array, '']
  negative: Float[Array, '']


def per_domain(
  means: Float[Array, 'N D'],
  variances: Float[Array, 'N D'],
  normalised: Float[Array, 'B D'],
) -> Float[Array, 'N B D']:
  """Returns every `F_k = M_k + sqrt(V_k) b`, b normalised (DFH eq. 3.2)."""
  return means[:, None] + jnp.sqrt(variances)[:, None] * normalised[None]


def draw(
  key: Key[Array, ''], dfs: Float[Array, 'N 4 D'], negative_variance: str
) -> Drawn:
  """Draws a mean and a variance per domain; rows of `dfs` are m, v, p, q."""
  m, v, p, q = jnp.moveaxis(dfs, 1, 0)
  key_m, key_v = jax.random.split(key)
  means = m + jnp.sqrt(v) * jax.random.normal(key_m, m.shape)
  scale = jnp.sqrt(q)
  raw = p + scale * jax.random.normal(key_v, p.shape)
  dead = p < FLOOR
  # Dead channels are counted apart: their draws are at the floor in any case.
  negative = (raw < FLOOR) & ~dead
  if negative_variance == 'abs':
    raw = jnp.abs(raw)
  elif negative_variance == 'mean':
    raw = jnp.where(raw < FLOOR, p, raw)
  elif negative_variance == 'resample':
    # Draws above this number of standard deviations are above zero. A channel
    # without variation has scale 0, and any number gives p.
    lowest = -p / jnp.where(scale > 0, scale, 1.0)
    key_v = jax.random.fold_in(key_v, 1)  # the first draw has used the key
    above = jax.random.truncated_normal(key_v, lowest, jnp.inf, p.shape)
    raw = p + scale * above
  variances = jnp.maximum(raw, FLOOR)
  return Drawn(means, variances, dead.mean(), negative.mean())


def novel_domain(
  key: Key[Array, ''],
  novel: str,
  drawn: Drawn,
  feature: Float[Array, 'B D'],
  normalised: Float[Array, 'B D'],
  own: Int[Array, ''],
  alpha: Float[Array, ' N'],
  mix_weights: str,
  mix_own: str,
) -> Float[Array, 'B D']:
  """Hallucinates the features of a domain that no client has.

  `dirichlet` is DFH's domain hallucination, with concentrations `alpha`; the
  mixups are its ablations (DFH table 2). Weights of a mixup are drawn per
  `batch` or per `sample`, and `mix_own` selects the features of the client's
  domain in it.
  """
  num = drawn.means.shape[0]
  if novel == 'dirichlet':
    w = _dirichlet(key, alpha)
    mean, variance = w @ drawn.means, w @ drawn.variances
    return mean[None] + jnp.sqrt(variance)[None] * normalised
  every = per_domain(drawn.means, drawn.variances, normalised)
  if mix_own == 'raw':
    here = (jnp.arange(num) == own)[:, None, None]
    every = jnp.where(here, feature[None], every)
  rows = (feature.shape[0],) if mix_weights == 'sample' else ()
  if novel == 'dirichlet_mixup':
    w = _dirichlet(key, alpha, rows)
    return jnp.einsum('...n,n...d->...d' if rows else 'n,nbd->bd', w, every)
  pair_key, key = jax.random.split(key)
  # Two different domains; with one domain both are the same.
  pair = jax.random.permutation(pair_key, num)[:2]
  share = jax.random.uniform(key, (*(rows or (1,)), 1))
  return share * every[pair[0]] + (1 - share) * every[pair[1 % num]]


def _dirichlet(key: Array, alpha: Array, rows: tuple[int, ...] = ()) -> Array:
  # As `jax.random.dirichlet`, whose last step is a quotient.
  logarithms = jax.random.loggamma(key, alpha, (*rows, *alpha.shape))
  return quotients.softmax(logarithms)
