"""Clients without labels: a memory of clusters takes the place of identities.

`data.unlabelled` numbers the images of a client instead of its persons, so that
the label of an image is its index and no hook sees a person. After the training
of a round a client embeds all of its images and clusters them. In the next
round the loss of an image x of cluster y is

  -log [exp(V_y . x / T) / sum_c exp(V_c . x / T)]

with unit features x and the memory V, one unit vector for each cluster. An
image without a cluster has no loss. After the step, image by image,

  V_y <- unit(m V_y + (1 - m) x).

The loss replaces that of the configuration, which a client with labels keeps.
Metrics of the loss are 0 at such a client.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedreid_jax.algorithms.statistics import memory
from fedreid_jax.core.types import Array, Batch, Flat, Metrics, Outputs
from fedreid_jax.losses import identity, metric
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  DataPass,
  Participants,
  Property,
)
from fedreid_jax.method.contexts import LossCtx, RoundCtx, RoundEndCtx
from fedreid_jax.method.rules import Given, Rule

# Splits of `data.client_split` that do not depend on identities.
SPLITS = ('by_dataset', 'by_camera')


@struct.dataclass
class Clusters:
  """The clusters of a client.

  Attributes:
    labels: cluster of each image, -1 for none, int32 `[C]`.
    memory: one unit vector for each cluster by its number, `[C, D]`.
  """

  labels: Array
  memory: Array


class Scheme(NamedTuple):
  """The clustering and the memory of a method.

  Attributes:
    cluster: `(unit features [C, D], valid bool [C], Clusters, number of images)
      -> Clusters`, after every round.
    clustered: field of `Outputs` with these features.
    before: whether clients also cluster before round 0.
    temperature: `T`.
    momentum: `m`.
  """

  cluster: Callable[[Array, Array, Clusters, Array], Clusters]
  clustered: str
  before: bool
  temperature: float
  momentum: float


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules of a method for clients without labels."""
  c = given.config
  yield (
    not c.data.unlabelled,
    'data.unlabelled',
    f'no client is without labels, and {given.name} trains such clients',
    "list their domains, or set it to ('all',)",
  )
  yield (
    c.local.sampler != 'uniform',
    'local.sampler',
    f'{c.local.sampler!r} draws by labels, which {given.name} does not know',
    "set it to 'uniform'",
  )
  yield (
    c.data.client_split not in SPLITS or bool(c.data.labels),
    'data.client_split',
    f'{given.name} needs clients that number their own images',
    "set it to 'by_dataset' or 'by_camera', and data.labels to ''",
  )
  yield (
    c.evaluation.validation > 0,
    'evaluation.validation',
    'persons of clients without labels cannot be held out',
    'set it to 0',
  )
  yield (
    bool(c.data.poison),
    'data.poison',
    'clients without labels have no labels to poison',
    "set it to ''",
  )
  for other in given.others:
    client = other.client
    reads = client and (client.loss or client.gradient or client.data_pass)
    yield (
      reads and 'label_free' not in other.properties,
      'components',
      f'{other.name!r} trains on labels, and {given.name!r} without them',
      'remove one of the two',
    )


def make(name: str, scheme: Scheme) -> Component:
  """Builds the component of a method."""

  def bind(participants: Participants) -> Component:
    without = [not c.labelled for c in participants.clients]
    return _component(name, scheme, np.array(without))

  # Without clients, for the rules of a configuration, none has labels.
  return _component(name, scheme, np.ones(1, bool))._replace(bind=bind)


def without_labels(unlabelled: np.ndarray) -> Callable[[Any], Array]:
  """Returns `(context) -> whether its client has no labels`, bool.

  Args:
    unlabelled: whether each client has no labels, bool `[N]`.
  """

  def is_without(ctx: Any) -> Array:
    # An empty lane has the index -1. A real site has its number in the
    # federation, and is the only client that it knows.
    row = jnp.clip(ctx.task.index, 0, len(unlabelled) - 1)
    return jnp.asarray(unlabelled)[row] & (ctx.task.index >= 0)

  return is_without


def _component(name: str, scheme: Scheme, unlabelled: np.ndarray) -> Component:
  is_without = without_labels(unlabelled)
  early: tuple[Property, ...] = ('before_first_round',) * scheme.before
  return Component(
    name,
    client=ClientHooks(
      init=no_clusters,
      loss=functools.partial(_contrast, scheme, is_without),
      post_step=functools.partial(_remember, scheme),
      data_pass=DataPass(
        functools.partial(_no_features, scheme),
        functools.partial(_add_features, scheme),
      ),
      round_end=functools.partial(_cluster, scheme, is_without),
    ),
    properties=('pseudo_labels', *early),
  )


def no_clusters(key: Array, variables: Flat) -> Clusters:
  """Every image is a cluster of its own, with an empty memory."""
  del key
  empty = memory.empty(variables)
  return Clusters(jnp.arange(len(empty)), empty)


def _contrast(
  scheme: Scheme,
  is_without: Callable[[Any], Array],
  variables: Flat,
  state: Clusters,
  ctx: LossCtx,
) -> tuple[Array, Metrics]:
  del variables
  labels, counts, used = of_batch(state, ctx)
  logits = memory.scores(
    state.memory, ctx.outputs.embedding, used, counts, scheme.temperature
  )
  value = identity.cross_entropy(logits, labels, counts)
  # The step has added the loss for indices of images in place of persons.
  plain, _ = ctx.objective(ctx.outputs, ctx.batch)
  hidden = is_without(ctx)
  share = identity.masked_mean(counts.astype(jnp.float32), ctx.batch.valid)
  found = {
    'contrast': value,
    'clustered': 100.0 * share,
    'precision': 100.0 * identity.accuracy(logits, labels, counts),
    'clusters': used.sum().astype(jnp.float32),
  }
  return (
    jnp.where(hidden, value - plain, 0.0),
    {name: jnp.where(hidden, x, 0.0) for name, x in found.items()},
  )


def of_batch(state: Clusters, ctx: LossCtx) -> tuple[Array, Array, Array]:
  """Clusters of a batch, whether each row counts, and used rows of the memory.

  The label of an image without a cluster is 0.
  """
  labels = state.labels[ctx.batch.labels]
  images = jnp.arange(len(state.labels))
  # Before the first clustering also the padding has labels.
  own = jnp.where(images < ctx.task.num_identities, state.labels, -1)
  used = images <= own.max()
  return jnp.maximum(labels, 0), ctx.batch.valid & (labels >= 0), used


def _remember(scheme: Scheme, state: Clusters, ctx: LossCtx) -> Clusters:
  labels, counts, _ = of_batch(state, ctx)
  moved = memory.remember(
    state.memory, ctx.outputs.embedding, labels, counts, scheme.momentum
  )
  return dataclasses.replace(state, memory=moved)


def _no_features(scheme: Scheme, outputs: Outputs, ctx: RoundCtx) -> Array:
  del ctx
  width = getattr(outputs, scheme.clustered).shape[1]
  return jnp.zeros((outputs.logits.shape[1], width), jnp.float32)


def _add_features(
  scheme: Scheme, found: Array, outputs: Outputs, batch: Batch
) -> Array:
  """Puts the features of a batch at the indices of its images."""
  rows = jnp.where(batch.valid, batch.labels, len(found))
  features = metric.unit(getattr(outputs, scheme.clustered))
  return found.at[rows].set(features, mode='drop')


def _cluster(
  scheme: Scheme,
  is_without: Callable[[Any], Array],
  state: Clusters,
  ctx: RoundEndCtx,
) -> tuple[Clusters, tuple[()]]:
  num = ctx.task.num_identities
  valid = jnp.arange(len(state.labels)) < num

  def cluster(state: Clusters) -> Clusters:
    return scheme.cluster(ctx.data_pass, valid, state, num)

  def keep(state: Clusters) -> Clusters:
    return state

  # A client with labels skips the distances of all pairs, if clients run one
  # after another.
  return jax.lax.cond(is_without(ctx), cluster, keep, state), ()
