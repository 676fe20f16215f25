"""DEEN: diverse embedding expansion between the modalities.

Zhang and Wang, "Diverse embedding expansion network and low-light cross-
modality benchmark for visible-infrared person re-identification" (CVPR 2023).
The network `models.deen` computes two more embeddings of every image. Let `f`
be the features of the images and `f1`, `f2` the features of the expansions, all
before the neck. The loss is

  L = CE + L_tri + lam_cpm [CPM(f, f1) + CPM(f, f2)] + lam_ort L_ort (eq. 10),

where cross-entropy and hard triplet loss are over all three, and `CPM` and
`L_ort` are defined in `losses.cross_modal`. This is the whole loss: the
plain loss must be switched off (`loss.identity = loss.triplet = 0`).

Deviations from the paper, all of which are those of the released code: each of
the three terms of CPM has its own hinge (eq. 3 has one around all), the
distance that pushes an expansion from its origin is a constant, and the
negatives are the nearest centres; there are two branches and `lam_ort` is 0.01
(table 6 and figure 6: three and 0.1); the attention of an MFA block is divided
by its size (eq. 7: softmax), and a branch of DEE is a mean (eq. 1: a sum).
Deviations from the released code: its position attention treats half the
channels of two halves of an image as one position, while here a position is a
position; identities that have one modality in a batch, which its sampler
excludes, do not enter CPM; the feature that is ranked is an image's own
embedding, while the released code also adds the similarities of all three
before and after the neck.
"""

import dataclasses
from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from fedreid_jax.core.options import Checked, Mark, Range
from fedreid_jax.core.types import Array, Flat, Metrics
from fedreid_jax.losses import cross_modal, identity, metric
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.method.contexts import LossCtx
from fedreid_jax.models import changes
from fedreid_jax.models.deen import DEEN


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of DEEN."""

  lam_cpm: Annotated[
    float, Range(0), Mark.STRENGTH, 'weight of centre-guided pair mining'
  ] = 0.8
  lam_ort: Annotated[
    float, Range(0), Mark.STRENGTH, "weight of the branches' inner products"
  ] = 0.01
  margin: Annotated[float, Range(0), 'margin of the hard triplet loss'] = 0.3
  cpm_margin: Annotated[
    float, Range(0), 'margin of centre-guided pair mining'
  ] = 0.2


def make(options: Options = Options()) -> Component:
  """Builds the component.

  Raises:
    ConfigError: when the network is built, if it is no ResNet.
  """
  lam_cpm, lam_ort, margin = options.lam_cpm, options.lam_ort, options.margin
  cpm_margin = options.cpm_margin

  def expansion_loss(
    variables: Flat, state: tuple[()], ctx: LossCtx
  ) -> tuple[Array, Metrics]:
    del variables, state
    every = ctx.outputs.extras['copies']
    labels, modalities, valid = (
      ctx.batch.labels,
      ctx.batch.modalities,
      ctx.batch.valid,
    )
    of_all = jnp.tile(labels, 3), jnp.tile(valid, 3)
    original, first, second = jnp.split(every.feature, 3)
    mined = sum(
      cross_modal.centre_pair_mining(
        original, branch, labels, modalities, valid, cpm_margin
      )
      for branch in (first, second)
    )
    metrics = {
      'identity': identity.cross_entropy(every.logits, *of_all),
      'triplet': metric.hard_triplet(every.feature, *of_all, margin),
      'cpm': jnp.asarray(mined),
      'ort': cross_modal.orthogonality(first, second, valid),
    }
    loss = (
      metrics['identity']
      + metrics['triplet']
      + lam_cpm * metrics['cpm']
      + lam_ort * metrics['ort']
    )
    return loss, metrics

  return Component(
    'deen', network=_network, client=ClientHooks(loss=expansion_loss)
  )


def _network(network: nn.Module) -> nn.Module:
  return changes.replace(network, DEEN, 'deen')
