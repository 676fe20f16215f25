"""The loss of a client: cross-entropy of identities and metric losses."""

import dataclasses
from collections.abc import Callable
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Float

from fedreid_jax.core.options import Mark, NonNegative, Range
from fedreid_jax.core.types import Array, Batch, Feature, Metrics, Outputs
from fedreid_jax.losses import identity, metric


@dataclasses.dataclass(frozen=True)
class Loss:
  """The loss of clients, to which components add."""

  identity: Annotated[NonNegative, 'weight of the cross-entropy'] = 1.0
  label_smoothing: Annotated[
    float, Range(0, 0.999), "label smoothing over a client's own identities"
  ] = 0.0
  triplet: Annotated[
    NonNegative, Mark.STRENGTH, 'weight of the hard triplet loss'
  ] = 0.0
  margin: Annotated[NonNegative, 'margin of the hard triplet loss'] = 0.5
  triplet_on: Annotated[
    Feature,
    'features of the hard triplet loss: after (embedding) or before (feature) '
    'the neck',
  ] = 'embedding'
  circle: Annotated[
    NonNegative, Mark.STRENGTH, 'weight of the circle loss on embeddings'
  ] = 0.0
  circle_margin: Annotated[NonNegative, 'margin of the circle loss'] = 0.45
  circle_gamma: Annotated[NonNegative, 'scale of the circle loss'] = 64.0
  weighted_triplet: Annotated[
    NonNegative, Mark.STRENGTH, "weight of AGW's triplet loss on features"
  ] = 0.0
  weighted_squared: Annotated[bool, "use CAJ's form of AGW's triplet loss"] = (
    False
  )


def make(
  config: Loss,
) -> Callable[[Outputs, Batch], tuple[Float[Array, ''], Metrics]]:
  """Builds `(Outputs, Batch) -> (loss, metrics)` from `config.loss`."""

  def objective(
    outputs: Outputs, batch: Batch
  ) -> tuple[Float[Array, ''], Metrics]:
    logits, labels, valid = outputs.logits, batch.labels, batch.valid
    entropy = identity.cross_entropy(
      logits, labels, valid, config.label_smoothing
    )
    # A part of weight zero is not added: parameters that only it depends on
    # have no gradient, and so no weight decay.
    loss = jnp.float32(0.0)
    if config.identity:
      loss = config.identity * entropy
    metrics = {
      'identity': entropy,
      'accuracy': 100.0 * identity.accuracy(logits, labels, valid),
    }
    if config.triplet:
      on = getattr(outputs, config.triplet_on)
      hinge = metric.hard_triplet(on, labels, valid, config.margin)
      loss = loss + config.triplet * hinge
      metrics['triplet'] = hinge
    if config.circle:
      round_ = metric.circle(
        outputs.embedding,
        labels,
        valid,
        config.circle_margin,
        config.circle_gamma,
      )
      loss = loss + config.circle * round_
      metrics['circle'] = round_
    if config.weighted_triplet:
      weighted = metric.weighted_triplet(
        outputs.feature, labels, valid, config.weighted_squared
      )
      loss = loss + config.weighted_triplet * weighted
      metrics['weighted_triplet'] = weighted
    return loss, metrics

  return objective
