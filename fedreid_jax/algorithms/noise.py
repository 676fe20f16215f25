"""White noise on the model: what Wu and Gong call privacy protection.

Decentralised learning from independent multi-domain labels for person
re-identification, AAAI 2021, eq. 14 and 15. After the reduction ('single')

  theta <- theta + beta N(0, 1),

and, if `double`, independent noise of the same size on every download as well.

Nothing is clipped before noise is added, so it carries no (epsilon, delta)
guarantee of differential privacy, whatever beta; a run says so.

Deviations from the paper: it does not say whether running statistics get noise;
by default they do not, a variance must not fall below zero. Deviations from the
released code of the same group's later work: there every entry of the state
gets noise (`batch_stats`).
"""

import dataclasses
from typing import Annotated

from fedreid_jax.algorithms.statistics import white_noise
from fedreid_jax.core.component import (
  Channel,
  Component,
  ServerCtx,
  ServerStep,
)
from fedreid_jax.core.options import Checked, Range


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of white noise."""

  beta: Annotated[
    float, Range(0), 'standard deviation; no guarantee of privacy'
  ] = 5e-4
  double: Annotated[bool, 'on every download too'] = False
  batch_stats: Annotated[bool, 'on running statistics too'] = False


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  beta, double, batch_stats = options.beta, options.double, options.batch_stats

  def apply(server, ctx: ServerCtx):
    return white_noise.on_updated(server, ctx, beta, batch_stats)

  def down(broadcast, key):
    noisy = white_noise.gaussian(key, broadcast.shared, beta, batch_stats)
    return broadcast.replace(shared=noisy)

  return Component(
    'noise',
    channel=Channel(down=down) if double else None,
    server_step=ServerStep(apply=apply),
    notice=white_noise.NOTICE,
  )
