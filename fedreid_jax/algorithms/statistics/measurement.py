"""A data pass that measures the moments of each identity's features."""

from collections.abc import Callable

from fedreid_jax.algorithms.statistics import moments, released_moments
from fedreid_jax.algorithms.statistics.moments import Moments
from fedreid_jax.algorithms.statistics.released_moments import Centred
from fedreid_jax.core.types import Array, Batch, Outputs
from fedreid_jax.method.component import DataPass
from fedreid_jax.method.contexts import RoundCtx


def data_pass(represent: Callable[[Outputs], Array], clip: float) -> DataPass:
  """Returns the data pass, whose result is `Moments`, or `Centred` with a clip.

  Args:
    represent: `(outputs) -> features [B, D]`.
    clip: largest distance of a feature from the mean that the client sent
      before, which is zero before round 0; 0 for none.
  """

  def nothing(outputs: Outputs, ctx: RoundCtx) -> Moments:
    del ctx
    num_features = represent(outputs).shape[1]
    return moments.zeros(outputs.logits.shape[1], num_features)

  def add(seen: Moments, outputs: Outputs, batch: Batch) -> Moments:
    return moments.merge(seen, represent(outputs), batch.labels, batch.valid)

  def none_near(outputs: Outputs, ctx: RoundCtx) -> Centred:
    # The centre is row m of the statistics that this client sent before.
    return released_moments.zeros(
      outputs.logits.shape[1], ctx.message[ctx.task.index, 0]
    )

  def add_near(seen: Centred, outputs: Outputs, batch: Batch) -> Centred:
    return released_moments.merge(
      seen, represent(outputs), batch.labels, batch.valid, clip
    )

  # Before the first round as well, whose loss needs the statistics of all.
  if clip:
    return DataPass(none_near, add_near, before_first_round=True)
  return DataPass(nothing, add, before_first_round=True)
