"""CCST: the styles of other clients, on the images of a client.

Chen, Jiang, Dou and Chen, Federated Domain Generalization for Image Recognition
via Cross-Client Style Transfer, WACV 2023. The overall domain style of client i
is the mean m_i and the standard deviation s_i of each channel of the features
of all its images, over images and positions. Every client sends its style, and
the server sends all of them, the style bank, to every client. An image with the
features F, of mean mu(F) and standard deviation s(F) in each channel, has the
features

  AdaIN(F, k) = s_k (F - mu(F)) / s(F) + m_k

in the style of client k. A client trains on every image in K different styles
of the bank, where its own style stands for the image itself. Here the loss of a
step is the mean over these styles,

  L = 1/K [L_ori + sum_{j < K} L(images with AdaIN(F, k_j))],

with K - 1 different other clients k_j, drawn for each image in each step, and L
the loss of the configuration. A step takes all K styles of its batch, so that
an epoch has as many steps as without them.

Deviations from the paper: there, F are features of VGG-19 that was trained on
other images, and a decoder, trained on other images as well, makes an image of
AdaIN(F, k) once, before the training. Here, F are the maps of the client's own
network after the stage `stage`, and AdaIN(F, k) are the maps of the next stage:
AdaIN in feature space of the network in place of an encoder-decoder pair, and
no decoder is needed. Since the network learns, every client sends its style
again after every round (and once before round 0), measured on its trained model
in evaluation mode with re-estimated moments of batch normalisation
(`method.batch_stats`). No style has a gradient. The K styles always contain the
client's own one, which the paper draws like the others; with K as large as the
number of clients, as in most of its tables, both are the same. Single image
styles, the other kind of the paper, are left out, because they are statistics
of single persons. Running statistics of batch normalisation are those of the
original images. Deviations from the released code: it writes an image in the
style of each other client once and draws K of these files for the whole
training; its variance of an image is unbiased, here it is biased.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.core import quotients
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Batch, Flat, Metrics, Outputs
from fedreid_jax.losses import identity
from fedreid_jax.method import batch_stats
from fedreid_jax.method import rules as common
from fedreid_jax.method.batch_stats import BatchMoments
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  DataPass,
  Participants,
  ServerHooks,
  broadcast_state,
  replace_rows,
)
from fedreid_jax.method.contexts import (
  LossCtx,
  RoundCtx,
  RoundEndCtx,
  ServerInitCtx,
)
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.models import changes
from fedreid_jax.models.layers import styles
from fedreid_jax.models.layers.styles import Style

EXPOSES = 'it sends the mean and the deviation of the maps of all images'
# Key of the moments of a client among those of layers.
LAYER = 'style'


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of CCST."""

  k: Annotated[
    int,
    Range(1),
    'number of styles of an image, its own included; at most those of all '
    'clients',
  ] = 3
  stage: Annotated[
    int,
    Range(1),
    'stage whose maps have the styles; a block of a convnet is a stage',
  ] = styles.TRANSFER_STAGE
  min_identities: Annotated[
    int,
    Range(1),
    'least number of identities of a client; the style of one identity '
    'reveals its mean maps',
  ] = 2


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from common.has_stages(given, 'stage', (given.options.stage,))


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: when the network is built, if it has no stages.
  """

  def bind(participants: Participants) -> None:
    participants.require_identities(
      options.min_identities, 'ccst.min_identities'
    )

  rule = styles.transfer_after(options.stage)

  def network(module: nn.Module) -> nn.Module:
    return changes.insert(module, rule, 'ccst')

  return Component(
    'ccst',
    network=network,
    client=ClientHooks(
      loss=functools.partial(_transferred_loss, options),
      data_pass=DataPass(_no_images, _add),
      round_end=_send,
    ),
    server=ServerHooks(
      init=_no_styles, receive=replace_rows, message=broadcast_state
    ),
    # Before the first round too, because its loss needs the styles of all.
    properties=('before_first_round', 'single_images'),
    bind=bind,
    released=EXPOSES,
  )


def _style(outputs: Outputs) -> Style:
  """The style of each image before a transfer."""
  return outputs.extras[styles.TRANSFER]


def _no_images(outputs: Outputs, ctx: RoundCtx) -> BatchMoments:
  del ctx
  zeros = jnp.zeros(_style(outputs).mean.shape[1], jnp.float32)
  return BatchMoments(jnp.float32(0), zeros, zeros)


def _add(seen: BatchMoments, outputs: Outputs, batch: Batch) -> BatchMoments:
  """Merges the moments over all positions of the images of a batch."""
  own, valid = _style(outputs), batch.valid
  mean = _mean(own.mean, valid)
  # All images have the same number of positions.
  var = _mean(own.var + (own.mean - mean) ** 2, valid)
  count = valid.sum().astype(jnp.float32)
  now = BatchMoments(count, mean, var)
  return batch_stats.merge({LAYER: seen}, {LAYER: now})[LAYER]


def _mean(values: Array, valid: Array) -> Array:
  """The mean over valid rows `[D]`, zeros without any."""
  total = jnp.where(valid[:, None], values, 0.0).sum(axis=0)
  return quotients.divide(total, jnp.maximum(valid.sum(), 1))


def _send(state: tuple[()], ctx: RoundEndCtx) -> tuple[tuple[()], Array]:
  """Returns the overall domain style `[2, D]`: mean, standard deviation."""
  found: BatchMoments = ctx.data_pass
  std = jnp.sqrt(found.var + styles.TRANSFER_EPSILON)
  return state, jnp.stack([found.mean, std])


def _no_styles(ctx: ServerInitCtx) -> Array:
  num_features = _style(ctx.outputs).mean.shape[1]
  return jnp.zeros((ctx.num_clients, 2, num_features))


def _transferred_loss(
  options: Options, variables: Flat, state: tuple[()], ctx: LossCtx
) -> tuple[Array, Metrics]:
  """The mean loss over all styles, without L_ori, which is in the step."""
  del state
  bank = jax.lax.stop_gradient(ctx.message)
  num, size = bank.shape[0], ctx.batch.labels.shape[0]
  others = draw_others(ctx.key, ctx.task.index, size, num)
  copies = min(options.k, num) - 1
  if not copies:
    return jnp.float32(0.0), {}
  own, shift, total = _style(ctx.outputs), jnp.float32(0), jnp.float32(0)
  for j in range(copies):
    mean, std = jnp.moveaxis(bank[others[:, j]], 1, 0)
    outputs, _ = ctx.model.apply(
      {**variables, **styles.given(mean, std)},
      ctx.batch.images,
      train=True,
      key=jax.random.fold_in(ctx.key, j + 1),  # 0 has drawn the styles
      mask=ctx.batch.valid,
      num_identities=ctx.task.num_identities,
      modalities=ctx.batch.modalities,
      labels=ctx.batch.labels,
    )
    total += ctx.objective(outputs, ctx.batch)[0]
    moved = ((mean - own.mean) ** 2).mean(axis=1)
    shift += identity.masked_mean(moved, ctx.batch.valid)
  # The step has the whole of L_ori, of which this leaves one part of K.
  original, _ = ctx.objective(ctx.outputs, ctx.batch)
  rest = (total - copies * original) / (copies + 1)
  return rest, {'transferred': total / copies, 'shift': shift / copies}


def draw_others(key: Array, own: Array, size: int, num: int) -> Array:
  """Draws an order of the other clients for each image, int32 `[B, N]`.

  The client's own index is last in each row.
  """
  lots = jax.random.uniform(jax.random.fold_in(key, 0), (size, num))
  return jnp.argsort(jnp.where(jnp.arange(num) == own, 2.0, lots), axis=1)
