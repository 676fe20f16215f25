"""LbA: learning by aligning images of the two modalities.

Park et al., "Learning by aligning: visible-infrared person re-identification
using cross-modal correspondences" (ICCV 2021). The network `models.alignment`
reconstructs the maps of every image, at stages 3 and 4, from a random image of
the same person and from one of another person, both of the other modality. The
component adds to the plain loss, cross-entropy and hard triplet (margin 0.3) on
features before the neck,

  L = CE + L_tri + sum_{l = 3, 4} [CE(rebuilt_l) + lam L_dt_l],

the cross-entropy of the maps reconstructed from the same person, and the dense
triplet loss between map, positive and negative (`losses.cross_modal`). The
paper ranks the feature before the neck.

Deviations from the paper: an image without a partner in the batch is excluded
from the loss. Deviations from the released code: its product of co-mask and
hinge mixes the images of a batch, while here each image has its own; with
PyTorch above 1.9 it computes distances along the width, while here they are
over channels, as intended; it assigns partners of the same person without
replacement, while here each image samples its own; batch normalisation sees
images and reconstructed maps together, while there it sees them one after the
other.
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import cross_modal, identity
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx
from fedreid_jax.models import alignment, changes


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of LBA."""

  lam: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of the dense triplet loss'
  ] = 0.5
  margin: Annotated[float, Range(0), 'margin of the dense triplet loss'] = 0.3


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: when the network is built, if it is no ResNet.
  """
  lam, margin = options.lam, options.margin

  def alignment_loss(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    extras, batch = ctx.outputs.extras, ctx.batch
    rebuilt = jnp.split(extras['copies'].logits, 1 + len(alignment.LEVELS))[1:]
    entropy = dense = jnp.float32(0)
    for level, logits in zip(alignment.LEVELS, rebuilt, strict=True):
      aligned = extras[level]
      counts = batch.valid & aligned.has_positive
      entropy += identity.cross_entropy(logits, batch.labels, counts)
      dense += cross_modal.dense_triplet(
        aligned.comask,
        aligned.positive,
        aligned.negative,
        counts & aligned.has_negative,
        margin,
      )
    return entropy + lam * dense, {'rebuilt': entropy, 'dense': dense}

  return Component(
    'lba',
    network=_network,
    client=ClientHooks(loss=alignment_loss),
    properties=('single_images',),
  )


def _network(network: nn.Module) -> nn.Module:
  return changes.replace(network, alignment.CMAlign, 'lba')
