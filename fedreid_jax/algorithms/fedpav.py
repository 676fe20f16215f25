"""FedPav: federated partial averaging.

Zhuang et al., Performance Optimization for Federated Person Re-identification
via Benchmark Analysis (FedReIDBench), ACM MM 2020, Algorithm 1.

All parameters are shared except the identity classifier and embeddings of
cameras (`models.backbones.vit`), which are personal because the identities and
the cameras of clients differ. With n_k images at client k of the
cohort S,

  w = sum_{k in S} (n_k / sum_{j in S} n_j) w_k.

Deviations from the paper: weights are renormalised over the cohort (the paper
divides by the size of all data, which is the same at full participation).
Deviations from the released code: running statistics are averaged like
parameters by default; the code keeps those of the client sampled first, which
is `config.batch_stats_rule = 'first_client'`.
"""

import dataclasses
from typing import Annotated

from fedreid_jax.core.options import Checked, Regex
from fedreid_jax.method.component import Component


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedPav."""

  shared: Annotated[
    str,
    Regex(),
    'regular expression of the shared parameters, matched from the start of '
    'the name',
  ] = r'(?!params/(.+/)?classifier/)(?!params/(.+/)?camera_embed)'


def make(options: Options = Options()) -> Component:
  """Builds the component."""
  return Component('fedpav', shared=options.shared)
