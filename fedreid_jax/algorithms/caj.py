"""CAJ: consistency of the predictions for two views of a person.

Ye et al., "Channel augmented joint learning for visible-infrared recognition"
(CAJ, ICCV 2021), and "Channel augmentation for visible-infrared re-
identification" (CAJ+, TPAMI 2024). A batch of the sampler `pk_caj` has three
parts of equal size: visible images, copies of them in which one channel
replaces all three, and infrared images; the n-th images of all parts show the
same person. Let `s_n` be the scores of the n-th visible image, and `t_n` those
of its copy or of the n-th infrared image. The component adds to the plain loss

  lam T^2 mean_n sum_z Q_nz log(Q_nz / P_nz),  P_n = softmax(s_n / T), Q_n =
      softmax(t_n / T),

where Q has no gradient. Without this component the method is its plain loss,
the cross-entropy and the weighted triplet loss of all three parts. L2RW reports
CAJ without this term.

The released code has the term in two versions. CAJ has the infrared images as
`teacher` and T = 3, with a default weight of 0. CAJ+ has the copies as
`teacher`, T = 1 and a weight of 1, which are the defaults here.

Deviations from the paper: the papers speak of joint learning of the views, and
of a consistency regularisation that is mutual; here, as in the released code by
default, only the visible images learn from the other view. Deviations from the
released code: CAJ adds 1e-7 to Q; CAJ+ has the cross-entropy of P under Q,
whose gradient is the same and which is larger by the entropy of Q; an image
whose partner is padding does not count.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import identity
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx
from fedreid_jax.method.rules import Given, Rule

PARTS = ('visible', 'copy', 'infrared')  # of a batch of pk_caj, in order


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of the consistency of CAJ."""

  lam: Annotated[float, Range(0), 'weight of the divergence'] = 1.0
  teacher: Annotated[
    Literal['copy', 'infrared'],
    'view whose predictions the visible images learn: their copies with '
    'exchanged channels (CAJ+), or infrared images of the same persons (CAJ)',
  ] = 'copy'
  temperature: Annotated[
    float, Range(1e-6), 'temperature of the softmax of both views'
  ] = 1.0


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  sampler = given.config.local.sampler
  yield (
    sampler != 'pk_caj',
    'local.sampler',
    f'{given.name} compares the three parts of a batch of pk_caj, not of '
    f'{sampler}',
    'use configs/caj.py',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: when a step is traced, if a batch does not have three parts.
  """
  lam, temperature = options.lam, options.temperature
  teacher = PARTS.index(options.teacher)

  def consistency(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    size = ctx.batch.valid.shape[0]
    if size % len(PARTS):
      raise errors.ConfigError(
        f'{size} images are not three equal parts',
        'components: caj',
        "set local.sampler='pk_caj'",
      )
    scores = jnp.split(ctx.outputs.logits, len(PARTS))
    valid = jnp.split(ctx.batch.valid, len(PARTS))
    divergence = identity.divergence(
      scores[0], scores[teacher], valid[0] & valid[teacher], temperature
    )
    return lam * divergence, {'divergence': divergence}

  return Component('caj', client=ClientHooks(loss=consistency))
