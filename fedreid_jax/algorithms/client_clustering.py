"""Client clustering: similar clients share a model.

Zhuang et al. (FedReIDBench), journal version, section 5.1 and Algorithm 2.
After local training the model of each client embeds the same public images X.
Its features, concatenated, are one vector u_k, and one step of FINCH with the
cosine distance splits the cohort S into clusters c:

  w_c = sum_{k in c} (n_k / sum_{j in c} n_j) w_k.

The clients of c start their next round from w_c. A client that was not sampled,
or whose upload is lost, keeps the model of its last cluster. With 'cdw' the
weights within a cluster are cosine distances. The models are in evaluation mode
and normalise with the moments of X.

FINCH is the first partition of Sarfraz, Sharma and Stiefelhagen, Efficient
parameter-free clustering using first neighbor relations, CVPR 2019, eq. 1: with
k_i the nearest row of i by cosine, rows i and j are linked if j = k_i, i = k_j
or k_i = k_j, and the clusters, connected components, have two rows or more.

Deviations from the paper: it does not specify how a batch of features becomes
one vector; this module concatenates them (`represent='mean'` averages them). X
is the first `images` public images in every round. Algorithm 2 sums the weights
over S inside a cluster, where they would not sum to one. There is no released
code of the clustering.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.method.component import Component, Participants
from fedreid_jax.method.contexts import ServerCtx
from fedreid_jax.method.rules import Given, Rule, embeds_at_server


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of client clustering."""

  images: Annotated[
    int, Range(1), 'number of public images on which clients are compared'
  ] = 32
  represent: Annotated[
    Literal['flatten', 'mean'],
    "how a client's features become one vector: concatenated or averaged",
  ] = 'flatten'


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from embeds_at_server(given)


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  images, represent = options.images, options.represent

  def vectors(ctx: ServerCtx) -> Array:
    batch = ctx.test_transform(ctx.public[:images])

    def vector(shared: Flat) -> Array:
      # Moments of X: the running moments of a trained model are delayed, and
      # clients would differ by this delay.
      outputs, _ = ctx.model.measure(ctx.complete(shared), batch)
      if represent == 'mean':
        return outputs.embedding.mean(axis=0)
      return outputs.embedding.reshape(-1)

    return jax.lax.map(vector, ctx.uploaded)

  def cluster(groups: Array, ctx: ServerCtx) -> Array:
    clusters = first_neighbour_clusters(vectors(ctx), ctx.valid)
    return _free_groups(groups, ctx.index, ctx.valid, clusters)

  def check(participants: Participants) -> None:
    participants.require_public(images, 'client_clustering.images')
    if participants.cohort < 3:
      raise errors.ConfigError(
        f'{errors.counted(participants.cohort, "client")} a round cannot be '
        'split into clusters',
        'fraction',
        'let at least three take part',
      )

  return Component('client_clustering', clustering=cluster, bind=check)


def _free_groups(
  groups: Array, index: Array, valid: Array, clusters: Array
) -> Array:
  """Assigns to each cluster a group that no absent client uses."""
  # `groups` are those of all clients, `[N]`; the other arrays are `[K]`, and
  # `clusters` holds the first upload of each upload's cluster.
  num = groups.shape[0]
  present = (
    jnp.zeros(num, bool).at[jnp.where(valid, index, num)].set(True, mode='drop')
  )
  held = (
    jnp.zeros(num, bool)
    .at[jnp.where(present, num, groups)]
    .set(True, mode='drop')
  )
  # Absent clients keep the model of their group, so it must not be reused. Free
  # groups come first, in order; there are at least as many as clusters.
  free = jnp.argsort(held, stable=True)
  leads = valid & (clusters == jnp.arange(clusters.shape[0]))
  rank = jnp.cumsum(leads) - 1
  return jnp.where(valid, free[rank[clusters]], groups[index]).astype(
    groups.dtype
  )


def first_neighbour_clusters(
  features: Array, valid: Array | None = None
) -> Array:
  """Clusters rows `[K, D]` by one step of FINCH, also under `jit`.

  The result is the lowest row of each row's cluster, int32 `[K]`. A row that is
  not finite, or False in `valid`, is alone in its cluster. Of equally near rows
  the lowest is the nearest.
  """
  rows: Array = jnp.asarray(features, jnp.float32)
  num = len(rows)
  # The largest of similarities with a nan is the nan: one such row would be
  # the nearest of all others, and join them.
  finite = jnp.isfinite(rows).all(axis=1)
  valid = finite if valid is None else finite & jnp.asarray(valid)
  size = jnp.sqrt((rows**2).sum(axis=1, keepdims=True))
  unit = rows / jnp.maximum(size, 1e-12)
  similarity = jnp.matmul(unit, unit.T, precision='highest')
  pairs = valid[:, None] & valid[None] & ~jnp.eye(num, dtype=bool)
  nearest = jnp.where(pairs, similarity, -jnp.inf).argmax(axis=1)
  # Links (i, k_i) are enough: the third kind, k_i = k_j, joins rows that are
  # already connected through k_i. `argmax` gives 0 where no pair is allowed.
  linked = (nearest[:, None] == jnp.arange(num)[None]) & pairs
  reach = linked | linked.T | jnp.eye(num, dtype=bool)
  # Each product doubles the path length, so this many reach any row.
  for _ in range(max(num - 1, 1).bit_length()):
    paths = reach.astype(jnp.float32)
    reach = jnp.matmul(paths, paths) > 0
  return reach.argmax(axis=1).astype(jnp.int32)
