"""Features of domains a client has never seen, from their statistics.

Rui et al., DFH, section 3.2, and the mixups of its ablation (table 2).
"""

import jax
import jax.numpy as jnp

from fedreid_jax.core.types import Array

NOVEL = ('dirichlet', 'dirichlet_mixup', 'feature_mixup', 'none')
NEGATIVE = ('clamp', 'abs', 'resample', 'mean')
MIX = ('batch', 'sample')
FLOOR = 1e-6


def per_domain(means: Array, variances: Array, embedding: Array) -> Array:
  """Returns every `F_k = M_k + sqrt(V_k) b`, `[N, B, D]` (DFH eq. 3.2)."""
  return means[:, None] + jnp.sqrt(variances)[:, None] * embedding[None]


def draw(
  key: Array, dfs: Array, negative_variance: str
) -> tuple[Array, Array, Array]:
  """Draws a mean and a variance for every domain.

  Args:
    key: PRNG key.
    dfs: `[N, 4, D]`.
    negative_variance: what to do with a draw below zero, `NEGATIVE`.

  Returns:
    (means `[N, D]`, variances `[N, D]` of at least 1e-6, share of the drawn
    variances that were below).
  """
  m, v, p, q = jnp.moveaxis(dfs, 1, 0)
  key_m, key_v = jax.random.split(key)
  means = m + jnp.sqrt(v) * jax.random.normal(key_m, m.shape)
  scale = jnp.sqrt(q)
  raw = p + scale * jax.random.normal(key_v, p.shape)
  below = (raw < FLOOR).mean()
  if negative_variance == 'abs':
    raw = jnp.abs(raw)
  elif negative_variance == 'mean':
    raw = jnp.where(raw < FLOOR, p, raw)
  elif negative_variance == 'resample':
    lowest = -p / jnp.where(scale > 0, scale, 1.0)
    above = jax.random.truncated_normal(key_v, lowest, jnp.inf, p.shape)
    raw = p + scale * above
  return means, jnp.maximum(raw, FLOOR), below


def novel_domain(
  key: Array,
  novel: str,
  means: Array,
  variances: Array,
  feature: Array,
  embedding: Array,
  own: Array,
  alpha: Array,
  mix_weights: str,
) -> Array:
  """Hallucinates the features of a domain that no client has, `[B, D]`.

  Args:
    key: PRNG key.
    novel: `dirichlet` is DFH's domain hallucination, the mixups are its
      ablations (DFH table 2).
    means: of the domains, `[N, D]`.
    variances: `[N, D]`.
    feature: the batch's own pooled features, `[B, D]`.
    embedding: normalised features `b`, `[B, D]`.
    own: index of the client's own domain, int32.
    alpha: concentration of the Dirichlet law, `[N]`.
    mix_weights: draw weights per `batch` or per `sample` (mixup only).
  """
  num = means.shape[0]
  if novel == 'dirichlet':
    w = jax.random.dirichlet(key, alpha)
    return w @ means + jnp.sqrt(w @ variances) * embedding
  every = per_domain(means, variances, embedding)
  rows = (embedding.shape[0],) if mix_weights == 'sample' else ()
  if novel == 'dirichlet_mixup':
    every = jnp.where(
      (jnp.arange(num) == own)[:, None, None], feature[None], every
    )
    w = jax.random.dirichlet(key, alpha, rows)
    return jnp.einsum('...n,n...d->...d' if rows else 'n,nbd->bd', w, every)
  pair_key, key = jax.random.split(key)
  pair = jax.random.permutation(pair_key, num)[:2]
  share = jax.random.uniform(key, (*rows, 1))
  return share * every[pair[0]] + (1 - share) * every[pair[1 % num]]
