"""Fed-Protoid: cameras without labels that adapt a model of a source.

Rami, Giraldo, Winckler and Lathuiliere, Privacy-Preserving Adaptive Re-
Identification without Image Transfer, ECCV 2024. Every camera of the target is
a client without labels (`data.unlabelled`). The source, a domain with labels
that stays at the server, is one more client (`data.undivided`). The run starts
from a model that was trained on the source (`start_from`).

Before round 0 the source computes its prototypes under this model, the mean
embedding of each of its identities, which all cameras receive once. A camera
clusters its images by DBSCAN on the Jaccard distances of their embeddings, and
the unit mean embeddings of the clusters replace its classifier. A client has a
mean teacher t, which begins a round as the received model, and after each step

  t <- a t + (1 - a) w,  a = `decay`,

with its model w. With the scores p of the model and q of the teacher, and the
clusters of a camera or the identities of the source as labels y, the loss is

  cross_entropy CE(p, y) + soft KL(q || p) + triplet L_tri + soft_triplet L_soft
    + mmd MMD(embeddings of the batch, as many prototypes),

where L_tri and L_soft are softmax triplet losses of pooled features, against
the labels and against the teacher (`losses.adaptation`); the source has no MMD.
KL differs from the cross-entropy of p under q by a constant. This loss replaces
that of the configuration. Clients upload their teachers, and the server's model
is their mean: the source has the weight `beta`, and the cameras share 1 - beta
by their images, or equally (`weights`). Both are shares of the clients whose
uploads arrived; without the source the cameras share 1. The classifier stays at
a client (component `fedpav`). All uploads are gathered, because one sum would
give the source another weight in every cohort.

Batch normalisation is specific to the domains: a batch has images of one client
and is normalised by its own moments. The running statistics of the server are
those of the target: the mean over the cameras of their running means and
variances, plus the variance between the means of cameras. Those of the source
stay there. Scales and biases are averaged over all clients.

Without a source no client has labels, and the loss has no MMD; the run must
then start from a trained model. Several clients with labels share `beta`.

Deviations from the paper: batches are random, because the batches of a round
are chosen before its clusters are known, where the paper draws 4 images of 4
clusters. An image without a cluster is in the MMD only. An anchor without
another image of its cluster, or without one of another cluster, has no triplet.
Images are clustered at the end of a round under the model that the client has
trained, with moments that are re-estimated at its weights, and not under the
received mean of teachers. Prototypes are drawn at random for each step.

Deviations from the released code: it switches domain-specific normalisation
off for clients of one domain, and the running statistics of its server are
those of the last camera, as it averages parameters only. There the gradient of
a triplet reaches its anchor only, prototypes come in the order of identities,
and the last step of a round does not reach the teacher.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from fedreid_jax.algorithms.statistics import clusters, memory, pseudo_labels
from fedreid_jax.algorithms.statistics.pseudo_labels import Clusters
from fedreid_jax.core import quotients, trees
from fedreid_jax.core.options import Checked, NonNegative, Range, Share
from fedreid_jax.core.types import (
  Array,
  Batch,
  Broadcast,
  Flat,
  Metrics,
  Outputs,
  Upload,
)
from fedreid_jax.losses import adaptation, identity, metric
from fedreid_jax.method import aggregation
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  DataPass,
  Participants,
  ServerHooks,
  Transport,
)
from fedreid_jax.method.contexts import (
  AggregationCtx,
  LossCtx,
  ReceiveCtx,
  RoundCtx,
  RoundEndCtx,
  ServerInitCtx,
  StepCtx,
)
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.method.sums import Gather
from fedreid_jax.models.reid import PADDED_LOGIT

NAME = 'fed_protoid'
MEAN = '/mean'  # of the names of running statistics
IsCamera = Callable[[Any], Array]  # `(context) -> whether it has no labels`


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of Fed-Protoid; defaults of the released code."""

  beta: Annotated[Share, 'weight of the source in the mean of the server'] = 0.2
  weights: Annotated[
    Literal['count', 'equal'],
    'shares of the cameras in the rest: by number of images, or equal',
  ] = 'count'
  decay: Annotated[Share, 'weight of the old teacher in its update, a'] = 0.999
  cross_entropy: Annotated[
    NonNegative, 'weight of the cross-entropy of clusters or identities'
  ] = 0.5
  label_smoothing: Annotated[
    float, Range(0, 0.999), 'label smoothing of this cross-entropy'
  ] = 0.1
  soft: Annotated[
    NonNegative, "weight of the divergence from the teacher's scores"
  ] = 0.5
  triplet: Annotated[NonNegative, 'weight of the softmax triplet loss'] = 0.2
  soft_triplet: Annotated[
    NonNegative, "weight of the triplet loss with the teacher's distances"
  ] = 0.8
  mmd: Annotated[
    NonNegative, 'weight of the discrepancy of embeddings and prototypes'
  ] = 0.1
  eps: clusters.Eps = 0.7
  min_samples: clusters.MinSamples = 4
  k1: clusters.K1 = 30
  k2: clusters.K2 = 6


@struct.dataclass
class Prototypes:
  """The prototypes of the clients with labels, of which there is usually one.

  Attributes:
    means: mean embedding of each identity, float32 `[sources, C, D]`.
    present: whether the client has the identity, bool `[sources, C]`.
  """

  means: Array
  present: Array


@struct.dataclass
class Served:
  """The state of the server.

  Attributes:
    prototypes: what cameras receive.
    source: whether each client has labels, as it says itself, bool `[N]`.
  """

  prototypes: Prototypes
  source: Array


@struct.dataclass
class Adapting:
  """The state of a client in a round.

  Attributes:
    clusters: the clusters of a camera.
    offset: what a camera adds to its classifier, so that it begins the round
      as the means of the clusters; zeros at the source. `[D, C]`.
    teacher: variables of the mean teacher.
  """

  clusters: Clusters
  offset: Array
  teacher: Flat


class Sums(NamedTuple):
  """Sums of embeddings by label, `[C, D]`, and numbers of images, `[C]`."""

  total: Array
  num: Array


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from pseudo_labels.rules(given)
  c = given.config
  names = {spec.partition(':')[0] for spec in c.data.sources}
  hidden = set(c.data.unlabelled)
  alone = 'all' in hidden or bool(names and names <= hidden)
  yield (
    c.batch_stats_rule != 'average',
    'batch_stats_rule',
    f'{given.name} has the running statistics of all cameras',
    "set it to 'average'",
  )
  yield (
    alone and not (c.start_from or c.model.pretrained),
    'data.unlabelled',
    f'{given.name} has neither a source with labels nor a trained model',
    'list the domains of the cameras only, or set start_from',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def bind(participants: Participants) -> Component:
    without = [not c.labelled for c in participants.clients]
    return _component(options, np.array(without))

  # Without clients, for the rules of a configuration, none has labels.
  return _component(options, np.ones(1, bool))._replace(bind=bind)


def _component(options: Options, unlabelled: np.ndarray) -> Component:
  is_camera = pseudo_labels.without_labels(unlabelled)
  return Component(
    NAME,
    client=ClientHooks(
      init=pseudo_labels.no_clusters,
      round_start=functools.partial(_begin, is_camera),
      pre_step=_teach,
      loss=functools.partial(_loss, options, is_camera),
      post_step=functools.partial(_follow, options.decay),
      data_pass=DataPass(_no_sums, _add_embeddings),
      round_end=functools.partial(_end, options, is_camera),
    ),
    server=ServerHooks(
      init=functools.partial(_no_prototypes, int((~unlabelled).sum())),
      receive=functools.partial(_receive, unlabelled),
      update=functools.partial(_add_variance, options),
      message=_send_prototypes,
    ),
    transport=Transport(up=_send_teacher),
    aggregation=Gather(functools.partial(_shares, options)),
    # Cameras keep the prototypes that they receive once.
    properties=('pseudo_labels', 'before_first_round', 'free_message'),
    conflicts=('transport',),
    released='it sends mean features of single persons',
  )


def _begin(is_camera: IsCamera, state: Clusters, ctx: RoundCtx) -> Adapting:
  kernel = ctx.variables[_kernel(ctx.variables)]
  offset = jnp.where(is_camera(ctx), state.memory.T - kernel, 0.0)
  return Adapting(state, offset, ctx.variables)


def _kernel(variables: Flat) -> str:
  # `no_clusters` has refused other numbers of classifiers than one.
  return next(n for n in variables if n.endswith(memory.KERNEL))


def _teach(state: Adapting, ctx: StepCtx) -> tuple[Adapting, Outputs]:
  """Returns the outputs of the teacher, whose running statistics follow."""
  batch = ctx.batch
  outputs, running = ctx.model.apply(
    state.teacher,
    batch.images,
    train=True,
    mask=batch.valid,
    num_identities=ctx.task.num_identities,
    modalities=batch.modalities,
    labels=batch.labels,
    cameras=batch.cameras,
  )
  teacher = {**state.teacher, **running}
  return dataclasses.replace(state, teacher=teacher), outputs


def _follow(decay: float, state: Adapting, ctx: LossCtx) -> Adapting:
  """Moves the teacher towards the model after a step."""
  params, _ = trees.trainable(ctx.variables)
  moved = {
    n: decay * state.teacher[n] + (1 - decay) * x for n, x in params.items()
  }
  return dataclasses.replace(state, teacher={**state.teacher, **moved})


def _loss(
  options: Options,
  is_camera: IsCamera,
  variables: Flat,
  state: Adapting,
  ctx: LossCtx,
) -> tuple[Array, Metrics]:
  del variables
  camera, outputs, teacher = is_camera(ctx), ctx.outputs, ctx.aux
  labels, counts, used = _labels(camera, state.clusters, ctx)

  def scores(of: Outputs) -> Array:
    moved = jnp.matmul(
      of.embedding, state.offset, precision=jax.lax.Precision.HIGHEST
    )
    logits = jnp.where(used, of.logits + moved, PADDED_LOGIT)
    # Rows that do not count must have a finite loss, whose gradient is zero.
    return jnp.where(counts[:, None], logits, 0.0)

  logits = scores(outputs)
  parts = {
    'cross_entropy': identity.cross_entropy(
      logits, labels, counts, options.label_smoothing
    ),
    'soft': identity.divergence(logits, scores(teacher), counts, 1.0),
    'triplet': adaptation.softmax_triplet(outputs.feature, labels, counts),
    'soft_triplet': adaptation.soft_softmax_triplet(
      outputs.feature, teacher.feature, labels, counts
    ),
    'mmd': jnp.where(camera, _discrepancy(ctx), 0.0),
  }
  total = jnp.float32(0.0)
  for name, value in parts.items():
    total += getattr(options, name) * value
  # The step has added the loss of the configuration.
  plain, _ = ctx.objective(outputs, ctx.batch)
  share = identity.masked_mean(counts.astype(jnp.float32), ctx.batch.valid)
  return total - plain, parts | {
    'clustered': jnp.where(camera, 100.0 * share, 0.0),
    'clusters': jnp.where(camera, used.sum(), 0).astype(jnp.float32),
    'precision': 100.0 * identity.accuracy(logits, labels, counts),
  }


def _labels(
  camera: Array, found: Clusters, ctx: LossCtx
) -> tuple[Array, Array, Array]:
  """Labels of a batch, whether each row has one, and columns that are used."""
  labels, counts, used = pseudo_labels.of_batch(found, ctx)
  real = jnp.arange(len(used)) < ctx.task.num_identities
  return (
    jnp.where(camera, labels, ctx.batch.labels),
    jnp.where(camera, counts, ctx.batch.valid),
    jnp.where(camera, used, real),
  )


def _discrepancy(ctx: LossCtx) -> Array:
  """The MMD of the embeddings of a batch and as many random prototypes."""
  means, present = ctx.message.means, ctx.message.present.reshape(-1)
  means = means.reshape(len(present), -1)
  order = jax.random.uniform(ctx.key, present.shape)
  num = min(len(ctx.batch.valid), len(present))
  _, rows = jax.lax.top_k(jnp.where(present, order, -1.0), num)
  return adaptation.mmd(
    ctx.outputs.embedding, means[rows], ctx.batch.valid, present[rows]
  )


def _no_sums(outputs: Outputs, ctx: RoundCtx) -> Sums:
  del ctx
  num, width = outputs.logits.shape[1], outputs.embedding.shape[1]
  return Sums(jnp.zeros((num, width), jnp.float32), jnp.zeros(num, jnp.float32))


def _add_embeddings(found: Sums, outputs: Outputs, batch: Batch) -> Sums:
  """Adds a batch; the label of a camera's image is its index."""
  rows = jnp.where(batch.valid, batch.labels, len(found.num))
  return Sums(
    found.total.at[rows].add(outputs.embedding, mode='drop'),
    found.num.at[rows].add(1.0, mode='drop'),
  )


def _end(
  options: Options, is_camera: IsCamera, state: Adapting, ctx: RoundEndCtx
) -> tuple[Clusters, dict[str, Any]]:
  """Clusters the images of a camera; returns its clusters and the message."""
  sums, camera = ctx.data_pass, is_camera(ctx)
  valid = jnp.arange(len(sums.num)) < ctx.task.num_identities

  def cluster(found: Clusters) -> Clusters:
    labels, means = clusters.by_neighbours(
      metric.unit(sums.total),
      valid,
      eps=options.eps,
      min_samples=options.min_samples,
      k1=options.k1,
      k2=options.k2,
    )
    return dataclasses.replace(found, labels=labels, memory=means)

  def keep(found: Clusters) -> Clusters:
    return found

  # The source skips the distances of all pairs, if clients run one after
  # another.
  kept = jax.lax.cond(camera, cluster, keep, state.clusters)
  message: dict[str, Any] = {'source': ~camera, 'teacher': state.teacher}
  if not ctx.trained:
    num = jnp.maximum(sums.num, 1.0)[:, None]
    message['prototypes'] = Prototypes(
      quotients.divide(sums.total, num), ~camera & (sums.num > 0)
    )
  return kept, message


def _send_teacher(
  state: tuple[()], upload: Upload, received: Broadcast, key: Array
) -> tuple[tuple[()], Upload]:
  """Replaces the model of an upload by the teacher, as a `Transport.up`."""
  del received, key
  message = dict(upload.messages[NAME])
  teacher = message.pop('teacher')
  return state, dataclasses.replace(
    upload,
    shared={n: teacher[n] for n in upload.shared},
    messages={**upload.messages, NAME: message},
  )


def _no_prototypes(num: int, ctx: ServerInitCtx) -> Served:
  # One row without a source, because the smallest of no numbers is none.
  columns, width = ctx.outputs.logits.shape[1], ctx.outputs.embedding.shape[1]
  shape = max(num, 1), columns
  none = Prototypes(
    jnp.zeros((*shape, width), jnp.float32), jnp.zeros(shape, bool)
  )
  return Served(none, jnp.zeros(ctx.num_clients, bool))


def _receive(
  unlabelled: np.ndarray,
  state: Served,
  messages: dict[str, Any],
  valid: Array,
  ctx: ReceiveCtx,
) -> Served:
  rows = jnp.where(valid, ctx.index, len(state.source))
  # A row behind the last is dropped.
  source = state.source.at[rows].set(messages['source'], mode='drop')
  state = dataclasses.replace(state, source=source)
  # Only messages before round 0 have prototypes.
  if 'prototypes' not in messages:
    return state
  kept, sent = state.prototypes, messages['prototypes']
  number = jnp.asarray(np.cumsum(~unlabelled) - 1)[ctx.index]
  rows = jnp.where(valid & messages['source'], number, len(kept.present))
  kept = Prototypes(
    kept.means.at[rows].set(sent.means, mode='drop'),
    kept.present.at[rows].set(sent.present, mode='drop'),
  )
  return dataclasses.replace(state, prototypes=kept)


def _send_prototypes(state: Served) -> Prototypes:
  return state.prototypes


def _shares(
  options: Options, messages: dict[str, Any], ctx: AggregationCtx
) -> dict[str, Array]:
  """Returns the weights of parameters and of running statistics, `[G, K]`."""
  every, cameras = _weights(options, messages['source'], ctx)
  params, running = trees.trainable(ctx.start)
  return dict.fromkeys(params, every) | dict.fromkeys(running, cameras)


def _weights(
  options: Options, source: Array, ctx: AggregationCtx
) -> tuple[Array, Array]:
  """Returns the weights of all clients and those of the cameras alone."""
  size = ctx.num_examples
  if options.weights == 'equal':
    size = jnp.ones_like(size)
  labelled, cameras = ctx.members & source, ctx.members & ~source
  has_source = labelled.any(axis=1, keepdims=True)
  has_cameras = cameras.any(axis=1, keepdims=True)
  beta = jnp.where(has_cameras, options.beta, 1.0)
  beta = jnp.where(has_source, beta, 0.0)
  # Clients with labels share their part by images, and are usually one.
  of_source = aggregation.normalise(ctx.num_examples, labelled)
  of_cameras = aggregation.normalise(size, cameras)
  # The moments of the source are of another domain.
  own = jnp.where(has_cameras, of_cameras, of_source)
  return beta * of_source + (1 - beta) * of_cameras, own


def _add_variance(
  options: Options, state: Served, models: Flat, ctx: AggregationCtx
) -> tuple[Served, Flat]:
  """Adds the variance between cameras to the mean of their variances."""
  _, weights = _weights(options, state.source[ctx.index], ctx)

  def between(name: str) -> Array:
    gaps = ctx.uploaded[name][None] - models[name][:, None]
    wide = weights.reshape(*weights.shape, *(1,) * (gaps.ndim - 2))
    # Uploads without weight may not be finite.
    return jnp.where(wide > 0, wide * jnp.square(gaps), 0.0).sum(axis=1)

  _, running = trees.trainable(models)
  means = [n for n in running if n.endswith(MEAN)]
  changed = {f'{n.removesuffix(MEAN)}/var': between(n) for n in means}
  return state, models | {n: models[n] + x for n, x in changed.items()}
