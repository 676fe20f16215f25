"""SSCU: DACS with a memory of identities that transformed images move.

Xu, Ren, Liu, Huang, Yang, Yu and Jiang, Positive Style Accumulation: A Style
Screening and Continuous Utilization Framework for Federated DG-ReID, ACM
Multimedia 2025. A client trains G, a local model L, a classifier and the style
transformation s, t of DACS (`dacs`). It keeps a memory M of one unit vector for
each identity, which begins as the mean feature of its images under the first
model that the client receives. With a temperature T,

  L_mem(f, y) = CE(M unit(f) / T, y)

takes the place of the classifier's loss; f is the feature after the neck. In a
round the client works on a copy of its memory. Each step on images x of
identities y

1. trains L by L_mem(L(x)) + tri(L(x)),
2. transforms x to x' and moves rows of the copy by features f' = G(x') of
   training mode, image by image, M_y <- unit(m M_y + (1 - m) unit(f')),
3. trains G, the classifier, s and t by

  L_mem(G(x)) + tri(G(x)) + [CE(cls(G(x')), y) + tri(G(x'))] + L_div
  + lam L_auth,

with L_div and L_auth of DACS; the terms after tri(G(x)) begin in round 1. The
memory has no gradient, and the classifier learns from x' and L_auth alone.

In every round of a number divisible by `every`, from 1, the features f' of all
steps also move the memory that the client keeps; those of other rounds leave it
as it was. The copy begins as this memory and is moved by the same features, so
that it takes its place. With `gate=validation` it does so only if the mAP on
held-out identities of the sources after this round is at least that of the
judgement before, of which the first is on the model before training. Nothing
depends on the target. The client keeps the copy beside its memory until it
trains again, and drops it if `HISTORY` judgements have followed.

Deviations from the paper: its abstract says that the memory takes up styles
that improve the global model; its text was not available. The equations are
those of the released code, a part of that of FedBPrompt (CVPR 2026). Deviations
from the released code: its gate reads rank-1 on the test of the target and
compares it with a number that is zero and never changes, so that it always
updates, as `gate=always` does without a test. It updates after rounds 11, 21
and so on. There, step 3 takes the scores of L_mem(G(x)) from the memory before
step 2 and its gradient from the rows after it, which are changed in place.
Its variance v(x) is unbiased, one argument is m and the momentum of SGD, and in
round 0 its classifier has no weight decay. The memory begins with moments of
batch normalisation that are re-estimated on the client's images
(`method.batch_stats`), there with those of the model. An identity without
images is no candidate of L_mem. Other deviations are those of `dacs`.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import jax.numpy as jnp

from fedreid_jax.algorithms import dacs
from fedreid_jax.algorithms.statistics import memory, moments
from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Batch, Flat, Metrics, Outputs
from fedreid_jax.losses import identity, metric
from fedreid_jax.method.component import (
  ClientHooks,
  Component,
  Participants,
  ServerHooks,
)
from fedreid_jax.method.contexts import (
  LossCtx,
  RoundCtx,
  RoundEndCtx,
  ServerInitCtx,
  StepCtx,
)
from fedreid_jax.method.rules import Given, Rule

HISTORY = 64  # judgements that the server remembers
NONE = -1  # of judgements


class Pending(NamedTuple):
  """A memory on which the judgement is still to come."""

  memory: Array  # `[C, D]`
  judgement: Array  # its number, `NONE` if there is no such memory, int32


class Kept(NamedTuple):
  """What a client keeps."""

  styles: dacs.Kept
  memory: Array  # M, `[C, D]`
  pending: Pending | tuple[()]  # () if no judgement is needed


class Training(NamedTuple):
  """The same within a round, with the copy of the memory."""

  styles: dacs.Training
  memory: Array
  copy: Array


class Judged(NamedTuple):
  """What the server knows of the last judgements.

  The judgement of number k is made after round k times `every`.
  """

  score: Array  # mAP of the last one
  last: Array  # its number, int32
  accepted: Array  # the results, newest first, bool `[HISTORY]`


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of SSCU."""

  lam: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the authenticity loss'
  ] = 5.0
  temperature: Annotated[
    float, Range(1e-3), 'temperature of the loss of the memory, T'
  ] = 0.05
  momentum: Annotated[
    float, Range(0, 1), 'weight of the old row in an update of the memory, m'
  ] = 0.9
  every: Annotated[
    int, Range(1), 'rounds between two updates of the memory that is kept'
  ] = 10
  gate: Annotated[
    Literal['always', 'validation'],
    'updates of the memory that is kept: all, or those of rounds after which '
    'the model is no worse on held-out identities (`evaluation.validation`)',
  ] = 'always'


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  c, own = given.config, given.options
  yield (
    c.loss.identity > 0,
    'loss.identity',
    f'the memory of {given.name} takes the place of the cross-entropy',
    'set it to 0',
  )
  yield (
    own.gate == 'validation' and own.every % c.evaluation.every > 0,
    'evaluation.every',
    f'a round that updates the memory, every {own.every}, is not evaluated',
    f'set it to a divisor of {given.name}.every',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def bind(participants: Participants) -> Component:
    return _of_images(options, participants.image_shape)

  # Images of any shape have the same hooks and properties.
  return _of_images(options, (1, 1, 1))._replace(bind=bind)


def _of_images(options: Options, shape: tuple[int, ...]) -> Component:
  gated = options.gate == 'validation'
  # The features from which the memory begins are needed once.
  features = moments.data_pass(lambda outputs: outputs.embedding, 0.0)
  return Component(
    'sscu',
    client=ClientHooks(
      init=functools.partial(_init, gated, shape),
      round_start=_round_start,
      pre_step=functools.partial(_pre_step, options),
      loss=functools.partial(_loss, options),
      data_pass=features._replace(every_round=False),
      round_end=functools.partial(_round_end, options),
    ),
    server=ServerHooks(
      init=_nothing_judged,
      message=_verdicts,
      judge=functools.partial(_judge, options.every),
    )
    if gated
    else None,
    properties=('before_first_round', 'single_images'),
    conflicts=('learned_style',),
  )


def _init(
  gated: bool, shape: tuple[int, ...], key: Array, variables: Flat
) -> Kept:
  none = memory.empty(variables)
  pending = Pending(none, jnp.int32(NONE)) if gated else ()
  return Kept(dacs.init(shape, key, variables), none, pending)


def _round_start(state: Kept, ctx: RoundCtx) -> Training:
  rows = state.memory
  if isinstance(state.pending, Pending):
    accepted = _accepted(ctx.message, state.pending.judgement)
    rows = jnp.where(accepted, state.pending.memory, rows)
  return Training(dacs.round_start(state.styles, ctx), rows, rows)


def _round_end(
  options: Options, state: Training, ctx: RoundEndCtx
) -> tuple[Kept, tuple[()]]:
  rows, done = state.memory, ctx.round + 1
  if not ctx.trained:
    rows = metric.unit(ctx.data_pass.mean)
  due = jnp.bool_(ctx.trained) & (done % options.every == 0)
  if options.gate == 'validation':
    number = jnp.where(due, done // options.every, NONE)
    return Kept(state.styles.kept, rows, Pending(state.copy, number)), ()
  return Kept(state.styles.kept, jnp.where(due, state.copy, rows), ()), ()


def _pre_step(
  options: Options, state: Training, ctx: StepCtx
) -> tuple[Training, dacs.Transformed]:
  """Trains L, s and t, and moves the copy of the memory."""

  def local(outputs: Outputs, batch: Batch) -> tuple[Array, Metrics]:
    others, metrics = ctx.objective(outputs, batch)
    own, _ = _memory_loss(options, state.copy, outputs, batch)
    return own + others, metrics

  losses = dacs.Losses(local, _transformed(ctx))
  styles, made, features = dacs.step(options.lam, losses, state.styles, ctx)
  batch = ctx.batch
  copy = memory.remember(
    state.copy, features, batch.labels, batch.valid, options.momentum
  )
  return Training(styles, state.memory, copy), made


def _loss(
  options: Options, variables: Flat, state: Training, ctx: LossCtx
) -> tuple[Array, Metrics]:
  """The losses of G and of the classifier beside tri(G(x))."""
  own, found = _memory_loss(options, state.copy, ctx.outputs, ctx.batch)
  transformed = _transformed(ctx)
  others, metrics = dacs.added(
    options.lam, transformed, variables, ctx.aux, ctx
  )
  return own + others, metrics | found


def _memory_loss(
  options: Options, rows: Array, outputs: Outputs, batch: Batch
) -> tuple[Array, Metrics]:
  """L_mem and its metrics."""
  # Rows of padded identities, and of those without images, are zeros.
  used = (rows != 0).any(axis=1)
  counts = batch.valid & used[batch.labels]
  scores = memory.scores(
    rows, outputs.embedding, used, counts, options.temperature
  )
  value = identity.cross_entropy(scores, batch.labels, counts)
  right = identity.accuracy(scores, batch.labels, counts)
  return value, {'memory': value, 'precision': 100.0 * right}


def _transformed(ctx: StepCtx) -> dacs.Objective:
  """CE(cls(G(x')), y) + tri(G(x'))."""

  def loss(outputs: Outputs, batch: Batch) -> tuple[Array, Metrics]:
    # The objective has no cross-entropy (`rules`).
    others, metrics = ctx.objective(outputs, batch)
    entropy = identity.cross_entropy(outputs.logits, batch.labels, batch.valid)
    return entropy + others, metrics

  return loss


def _nothing_judged(ctx: ServerInitCtx) -> Judged:
  del ctx
  # Below any mAP, and finite.
  return Judged(jnp.float32(-1), jnp.int32(NONE), jnp.zeros(HISTORY, bool))


def _judge(every: int, state: Judged, metrics: Metrics, done: Array) -> Judged:
  """Accepts the memories of a round that did not make the model worse."""
  score = metrics['mAP']
  results = jnp.append(score >= state.score, state.accepted[:-1])
  judged = Judged(score, done // every, results)
  return trees.select(done % every == 0, judged, state)


def _verdicts(state: Judged) -> dict[str, Array]:
  return {'last': state.last, 'accepted': state.accepted}


def _accepted(verdicts: dict[str, Array], judgement: Array) -> Array:
  """Whether the judgement of a number accepted the memories of its round."""
  age = verdicts['last'] - judgement
  known = (judgement != NONE) & (age >= 0) & (age < HISTORY)
  return known & verdicts['accepted'][jnp.clip(age, 0, HISTORY - 1)]
