"""Server-side knowledge distillation on public images.

Zhuang et al. (FedReIDBench), ACM MM 2020, section 5.1 and Algorithm 2; journal
version, Algorithm 3. After the aggregation the server's model f_w is trained
for one epoch over unlabelled public images to predict the mean feature of the
clients' models of the round,

  L = mean_{batch, dimensions} (f_w(x) - (1/K) sum_{k in S} f_{w_k}(x))^2.

All models see the same augmented batch, and every distillation starts a new SGD
(Nesterov). The last batch is used even if it is not full. Teachers are frozen.
Teachers and student normalise with the moments of the batch and have no
dropout; the student's running statistics become those of the public images.

Deviations from the paper: none is known. In the conference version clients send
features; in the journal version the server computes them from the models, which
is equivalent. Deviations from the released code: it distils every ten rounds
(`every`), and keeps the dropout (0.5) of teachers and student on. As in the
released code, teachers' features have unit length and the student's do not
(`normalise='teacher_only'`).

The student's running statistics follow the public images at any learning rate:
`lr=0` is the control experiment that keeps the weights and changes these only.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, cast

import jax
import jax.numpy as jnp

from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Tree
from fedreid_jax.losses import metric
from fedreid_jax.method import optimizers
from fedreid_jax.method.component import (
  Component,
  Participants,
  ServerHooks,
)
from fedreid_jax.method.contexts import AggregationCtx, ServerCtx
from fedreid_jax.method.rules import Given, Rule, embeds_at_server

# Parameters, running statistics and optimiser state of the student.
Training = tuple[Flat, Flat, Tree]


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of server-side distillation."""

  every: Annotated[int, Range(1), 'rounds between distillations'] = 1
  normalise: Annotated[
    metric.Normalise, 'features that are scaled to unit length'
  ] = 'teacher_only'
  lr: Annotated[
    float, Range(0), Mark.STRENGTH, 'learning rate of the server'
  ] = 5e-4
  batch: Annotated[int, Range(2), 'number of public images in a step'] = 32
  momentum: Annotated[float, Range(0, 0.9999), 'Nesterov momentum'] = 0.9
  weight_decay: Annotated[
    float, Range(0), 'weight decay of the parameters that get a gradient'
  ] = 5e-4


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from embeds_at_server(given)


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  every, normalise, lr = options.every, options.normalise, options.lr
  batch, momentum, weight_decay = (
    options.batch,
    options.momentum,
    options.weight_decay,
  )
  optimizer = optimizers.sgd(momentum, True, weight_decay)

  gradient = optimizer.grad(functools.partial(_student_loss, normalise))

  def distil(model: Flat, ctx: ServerCtx) -> Flat:
    public = ctx.public
    num = public.shape[0]
    steps = -(-num // batch)
    order_key, augment_key = jax.random.split(ctx.key)
    order = jax.random.permutation(order_key, num)
    # Padded places repeat the first image and are masked below.
    order = jnp.pad(order, (0, steps * batch - num)).reshape(steps, batch)
    params, running = trees.trainable(model)

    def step(i: Array, carry: Training) -> Training:
      params, running, state = carry
      images = ctx.train_transform(
        jax.random.fold_in(augment_key, i), public[order[i]]
      )
      valid = i * batch + jnp.arange(batch) < num
      grads, running = gradient(params, running, ctx, images, valid)
      params, state = optimizer.update(grads, state, params, lr)
      return params, running, state

    start = params, running, optimizer.init(params)
    params, running, _ = jax.lax.fori_loop(0, steps, step, start)
    return {**params, **running}

  def update(
    state: tuple[()], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[()], Flat]:
    model = {n: x[0] for n, x in models.items()}

    def distilled(model: Flat) -> Flat:
      return distil(model, ctx)

    def unchanged(model: Flat) -> Flat:
      return model

    # Without a valid upload there is no teacher.
    due = ((ctx.round + 1) % every == 0) & ctx.valid.any()
    model = jax.lax.cond(due, distilled, unchanged, model)
    return state, {n: x[None] for n, x in model.items()}

  def check(participants: Participants) -> None:
    participants.require_public(batch, 'kd.batch')

  return Component(
    'kd',
    server=ServerHooks(update=update),
    properties=('needs_uploads',),
    conflicts=('clustering', 'max_staleness'),
    bind=check,
  )


def _student_loss(
  normalise: metric.Normalise,
  params: Flat,
  running: Flat,
  ctx: ServerCtx,
  images: Array,
  valid: Array,
) -> tuple[Array, Flat]:
  """Returns (loss of the student on a batch, its new running statistics)."""
  variables = ctx.complete({**params, **running})
  outputs, updated = ctx.model.apply(variables, images, train=True, mask=valid)
  target = _teach(ctx, images, valid, normalise)
  loss = metric.feature_mse(outputs.embedding, target, valid, normalise)
  return loss, {n: updated[n] for n in running}


def _teach(
  ctx: ServerCtx, images: Array, valid: Array, normalise: str
) -> Array:
  """The mean feature of the clients' frozen models, `[B, D]`."""

  def one(client: tuple[Flat, Array]) -> Array:
    shared, counts = client
    # Moments of the batch: running statistics are delayed and come from other
    # images, so features computed with them are not those that were trained.
    outputs, _ = ctx.model.measure(ctx.complete(shared), images, mask=valid)
    feature = outputs.embedding
    if normalise != 'none':
      feature = metric.unit(feature)
    # An invalid upload may not be finite, and 0 * nan is nan.
    return jnp.where(counts, feature, 0.0)

  features = cast(Array, jax.lax.map(one, (ctx.uploaded, ctx.valid)))
  mean = features.sum(axis=0) / jnp.maximum(ctx.valid.sum(), 1)
  return jax.lax.stop_gradient(mean)
