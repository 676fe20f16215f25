"""The loss of a client: cross-entropy of identities and metric losses."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Float

from fedreid_jax.core.types import Array, Batch, Metrics, Outputs
from fedreid_jax.losses import identity, metric


def make(
  config,
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
