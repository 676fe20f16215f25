"""White noise on the model, the privacy protection of Wu and Gong.

Wu and Gong, Decentralised learning from independent multi-domain labels for
person re-identification, AAAI 2021, eq. 14 and 15. After the aggregation

  theta <- theta + beta N(0, 1)

and, with `double`, independent noise of the same size on every download.

Values are not clipped before noise is added, so the noise gives no (epsilon,
delta) guarantee of differential privacy for any beta; a run prints this notice.

Deviations from the paper: it does not state whether noise is added to running
statistics; by default it is not, because a variance must not fall below zero.
Deviations from the released code of the same group's later work: there noise is
added to every entry of the state (`batch_stats`).
"""

import dataclasses
from typing import Annotated

from fedreid_jax.algorithms.statistics import privacy
from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Broadcast, Flat
from fedreid_jax.method.component import (
  Component,
  ServerHooks,
  Transport,
)
from fedreid_jax.method.contexts import AggregationCtx


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of white noise."""

  beta: Annotated[
    float,
    Range(0),
    Mark.STRENGTH,
    'standard deviation; it gives no guarantee of privacy',
  ] = 5e-4
  double: Annotated[bool, 'also add noise to every download'] = False
  batch_stats: Annotated[bool, 'also add noise to running statistics'] = False


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  beta, double, batch_stats = options.beta, options.double, options.batch_stats

  def update(
    state: tuple[()], models: Flat, ctx: AggregationCtx
  ) -> tuple[tuple[()], Flat]:
    return state, privacy.on_updated(models, ctx, beta, batch_stats)

  def down(broadcast: Broadcast, key: Array) -> Broadcast:
    noisy = privacy.gaussian(key, broadcast.shared, beta, batch_stats)
    return dataclasses.replace(broadcast, shared=noisy)

  return Component(
    'noise',
    transport=Transport(down=down) if double else None,
    server=ServerHooks(update=update),
    properties=('unaccounted_noise',),
    notice=privacy.NOTICE,
  )
