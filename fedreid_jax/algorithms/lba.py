"""LbA: learning by aligning images of the two modalities.

Park et al., "Learning by aligning: visible-infrared person re-identification
using cross-modal correspondences" (ICCV 2021). The network `models.alignment`
rebuilds the maps of every image, at stages 3 and 4, from a random image of the
same person and from one of another, of the other modality. To the plain loss,
cross-entropy and hard triplet (margin 0.3) on features before the neck,

  L = CE + L_tri + sum_{l = 3, 4} [CE(rebuilt_l) + lam L_dt_l]

adds the cross-entropy of what is rebuilt from the same person, and the dense
triplet loss between map, positive and negative (`losses.dense_triplet`). What
is ranked in the paper is the feature before the neck.

Deviations from the paper: an image whose partner is not in the batch does not
count. Deviations from the released code: its product of co-mask and hinge mixes
the images of a batch, here each image has its own; with PyTorch above 1.9 it
takes distances along the width, here over channels, as meant; it deals partners
of the same person without replacement, here each image draws its own; batch
normalisation sees images and rebuilt maps together, there one after the other.
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp

from fedreid_jax import errors
from fedreid_jax.core.component import ClientHooks, Component
from fedreid_jax.core.contexts import LossCtx
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import dense_triplet, identity
from fedreid_jax.models import alignment


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of LBA."""

  lam: Annotated[float, Range(0), 'weight of the dense triplet loss'] = 0.5
  margin: Annotated[float, Range(0), 'of the dense triplet loss'] = 0.3


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: once it is traced, for a network that does not align.
  """
  lam, margin = options.lam, options.margin

  def alignment_loss(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    extras, batch = ctx.outputs.extras, ctx.batch
    if alignment.LEVELS[0] not in extras:
      raise errors.ConfigError(
        'the network aligns no images',
        'components: lba',
        'train the network lba with it',
      )
    rebuilt = jnp.split(extras['copies'].logits, 1 + len(alignment.LEVELS))[1:]
    entropy = dense = jnp.float32(0)
    for level, logits in zip(alignment.LEVELS, rebuilt, strict=True):
      aligned = extras[level]
      counts = batch.valid & aligned.has_positive
      entropy += identity.cross_entropy(logits, batch.labels, counts)
      dense += dense_triplet.dense_triplet(
        aligned.comask,
        aligned.positive,
        aligned.negative,
        counts & aligned.has_negative,
        margin,
      )
    return entropy + lam * dense, {'rebuilt': entropy, 'dense': dense}

  return Component('lba', client=ClientHooks(loss=alignment_loss))
