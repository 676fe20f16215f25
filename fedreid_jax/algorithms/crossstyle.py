"""CrossStyle: the style of another image of the batch, in an early stage.

Tang, Gao, Zhu, Zhang, Li and Metaxas, CrossNorm and SelfNorm for Generalization
under Distribution Shifts, ICCV 2021: the exchange of CrossNorm between two
images. With the mean mu(x) and the standard deviation s(x) of each channel of
the maps x of an image, and another image x' of the batch, the maps become

  s(x') (x - mu(x)) / s(x) + mu(x'),

where x' is at the place of x in a random permutation of the batch. Each of the
stages exchanges the styles of a batch of the training with the probability
`probability`; a test has no exchange. The statistics have a gradient. The
component inserts modules without parameters into the network
(`models.layers.styles`), and nothing more is sent than by FedPav.

Every client exchanges the styles of its own images. DACS (AAAI 2024), SSCU (MM
2025) and FedBPrompt (CVPR 2026) compare with this method under the name
CrossStyle. Stage 1 of a transformer is the map of its patches after their
positions; the class token keeps its values. Padded images of a batch are
partners of none.

Deviations from the paper: no crops of maps, and no SelfNorm. Deviations from
the released code of FedBPrompt, which has a transformer only: its variance is
unbiased, here biased.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated

from flax import linen as nn

from fedreid_jax.core.options import Checked, Range, Share
from fedreid_jax.method import rules as common
from fedreid_jax.method.component import Component
from fedreid_jax.method.rules import Given, Rule
from fedreid_jax.models import changes
from fedreid_jax.models.layers import styles


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of CrossStyle."""

  probability: Annotated[
    Share, 'probability that a stage exchanges the styles of a batch'
  ] = styles.PROBABILITY
  stages: Annotated[
    tuple[int, ...],
    Range(1),
    'stages after which styles are exchanged; a block of a convnet is a stage, '
    'and a transformer has one, before its blocks',
  ] = styles.CROSS_STAGES


def rules(given: Given) -> Iterator[Rule]:
  """Yields the rules for the other fields."""
  yield from common.has_stages(given, 'stages', given.options.stages)
  yield (
    not given.options.stages,
    f'{given.name}.stages',
    'no stage exchanges styles',
    'give at least one',
  )


def make(options: Options = Options()) -> Component:
  """Builds the component, which has no hooks: the network exchanges styles."""
  rule = styles.cross_after(options.probability, options.stages)

  def network(module: nn.Module) -> nn.Module:
    return changes.insert(module, rule, 'crossstyle')

  return Component('crossstyle', network=network)
