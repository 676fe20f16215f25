"""FedReID of Wu and Gong: a local expert teaches the client's model.

Decentralised learning from independent multi-domain labels for person
re-identification, AAAI 2021, section 3. In round k the client's model starts
from the server's embedding and the client's head (eq. 7), and the expert
starts from the client's *model* at the end of its last round (eq. 10); in the
first round both start from the same model. Each batch has two augmentations x
and x'; d are the client model's scores of x and d' the expert's scores of x'.
With T = 3

  L = CE(d, y) + CE(d', y)
      + T^2 mean_n sum_z Q_z log(Q_z / P_z),  P = softmax(d/T), Q =
      softmax(d'/T),

where the last term has a gradient with respect to the client's model only. Both
are trained by the client's optimiser; the expert is discarded after the round.
Compose this component with 'uniform' and a `fedpav.shared` that excludes the
head.

With `frozen` the teacher is the model from which the client first started,
without dropout. This is the variant "supervised with local data and
distillation" (table 6), which starts from a trained federation (`start_from`).
Like the trained expert it normalises with the moments of the batch.

Deviations from the paper: if only a fraction of the clients takes part, the
others do not train (the paper trains all clients and then selects), so an
expert may start from a model that is several rounds old; the paper does not
give the dropout rate, which is `model.dropout` here. Deviations from the
released code of the same group's later work: there the client starts from a
mixture with the server's model, its teacher is a copy of the server's model on
the same augmentation, and 1e-7 is added to Q.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms import local_models
from fedreid_jax.algorithms.local_models import LastModel
from fedreid_jax.core import trees
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat, Metrics, Tree
from fedreid_jax.losses import identity
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx, RoundCtx, RoundEndCtx, StepCtx
from fedreid_jax.method.rules import Given, Rule

# Variables and optimiser state of the expert.
Expert = tuple[Flat, Tree]


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the local expert."""

  temperature: Annotated[
    float, Range(1e-6), 'temperature of the softmax of both models'
  ] = 3.0
  frozen: Annotated[
    bool, 'keep the initial model of the client as expert, without training'
  ] = False


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield (
    given.options.frozen and not given.config.start_from,
    'start_from',
    'a frozen expert needs a trained model',
    'set it to the work directory of a finished run',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  temperature, frozen = options.temperature, options.frozen

  def round_start(state: LastModel, ctx: RoundCtx) -> Expert:
    """Starts from the client's last model, or else from its initial model."""
    last, has_last = state
    expert = trees.select(has_last, last, ctx.variables)
    params, _ = trees.trainable(expert)
    return expert, () if frozen else ctx.optimizer.init(params)

  def pre_step(state: Expert, ctx: StepCtx) -> tuple[Expert, Array]:
    expert, opt_state = state
    images = ctx.transform(jax.random.fold_in(ctx.key, 0))
    if frozen:
      return state, _scores(expert, images, ctx)
    return _train((expert, opt_state), images, ctx)

  def loss(
    variables: Flat, state: Expert, ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    divergence = identity.divergence(
      ctx.outputs.logits, ctx.aux, ctx.batch.valid, temperature
    )
    return divergence, {'divergence': divergence}

  def round_end(state: Expert, ctx: RoundEndCtx) -> tuple[LastModel, tuple[()]]:
    # A frozen teacher stays the model from which the client first started.
    own = state[0] if frozen else ctx.variables
    return (own, jnp.bool_(True)), ()

  return Component(
    'local_expert',
    client=ClientHooks(
      init=local_models.none_yet,
      round_start=round_start,
      pre_step=pre_step,
      loss=loss,
      round_end=round_end,
    ),
  )


def _scores(expert: Flat, images: Array, ctx: StepCtx) -> Array:
  """The scores of an expert that is not trained."""
  # Moments of the batch, since its running moments are an average over clients.
  outputs, _ = ctx.model.measure(
    expert,
    images,
    mask=ctx.batch.valid,
    num_identities=ctx.task.num_identities,
    modalities=ctx.batch.modalities,
    cameras=ctx.batch.cameras,
  )
  return outputs.logits


def _train(state: Expert, images: Array, ctx: StepCtx) -> tuple[Expert, Array]:
  """Returns (the expert after one step, its scores before the step)."""
  expert, opt_state = state
  params, running = trees.trainable(expert)

  def loss(params: Flat) -> tuple[Array, tuple[Array, Flat]]:
    outputs, updated = ctx.model.apply(
      {**params, **running},
      images,
      train=True,
      key=jax.random.fold_in(ctx.key, 1),
      mask=ctx.batch.valid,
      num_identities=ctx.task.num_identities,
      modalities=ctx.batch.modalities,
      cameras=ctx.batch.cameras,
      labels=ctx.batch.labels,
    )
    total, _ = ctx.objective(outputs, ctx.batch)
    return total, (outputs.logits, updated)

  grads, (logits, running) = ctx.optimizer.grad(loss)(params)
  params, opt_state = ctx.optimizer.update(grads, opt_state, params, ctx.lr)
  return ({**params, **running}, opt_state), logits
