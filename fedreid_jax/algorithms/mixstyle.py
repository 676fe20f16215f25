"""MixStyle: styles of the images of a batch, mixed in early stages.

Zhou, Yang, Qiao and Xiang, Domain Generalization with MixStyle, ICLR 2021. With
the mean mu(x) and the standard deviation s(x) of each channel of the maps x of
an image, and another image x' of the batch, the maps of a mixed batch become

  (l s(x) + (1 - l) s(x')) (x - mu(x)) / s(x) + l mu(x) + (1 - l) mu(x'),
  l ~ Beta(alpha, alpha),

where x' is at the place of x in a random permutation of the batch and l is
drawn for every image. Each of the stages mixes a batch of the training with the
probability `probability`; a test has no mixing. The statistics have no
gradient. The component inserts modules without parameters into the network
(`models.layers.styles`), and nothing more is sent than by FedPav.

In a federation every client mixes the styles of its own images. This is the
MixStyle with which CCST (WACV 2023) and DACS (AAAI 2024) compare. The paper's
mixing with domain labels takes x' from another domain than x and has no meaning
where a client has one domain; `ccst` exchanges styles between clients. The
defaults are those of the paper for re-identification: after the first two
stages, with alpha 0.1. FedBPrompt (CVPR 2026) compares with it on a transformer
after the positions of the patches, which is `stages = (1,)` there.

Deviations from the paper: none in the equations. Deviations from the released
code: its variance is unbiased, that of the paper and of this module biased.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from flax import linen as nn

from fedreid_jax.core.options import Checked, Range
from fedreid_jax.method import rules as common
from fedreid_jax.method.component import Component
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.models import changes
from fedreid_jax.models.layers import styles


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of MixStyle."""

  alpha: Annotated[
    float, Range(1e-3), 'both parameters of the Beta distribution'
  ] = styles.ALPHA
  probability: Annotated[
    float, Range(0, 1), 'probability that a stage mixes a batch'
  ] = styles.PROBABILITY
  stages: Annotated[
    tuple[int, ...],
    Range(1),
    'stages after which styles are mixed; a block of a convnet is a stage, and '
    'a transformer has one, before its blocks',
  ] = styles.STAGES


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from common.has_stages(given, 'stages', given.options.stages)
  yield (
    not given.options.stages,
    f'{given.name}.stages',
    'no stage is mixed',
    'give at least one',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component, which has no hooks: the network mixes styles."""
  rule = styles.mix_after(options.alpha, options.probability, options.stages)

  def network(module: nn.Module) -> nn.Module:
    return changes.insert(module, rule, 'mixstyle')

  return Component('mixstyle', network=network)
