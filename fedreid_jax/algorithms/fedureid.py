"""FedUReID: federated re-identification by bottom-up clustering of each client.

Zhuang, Wen and Zhang, Joint Optimization in Edge-Cloud Continuum for Federated
Unsupervised Person Re-identification, ACM MM 2021. At first every image of a
client is a cluster of its own. After each of its first floor(1 / p) - 1 rounds
the client merges s = max(floor(p M), 1) pairs of the nearest of its clusters,
with p = `merge` and M the number of its images; the distance of two clusters is
the smallest squared distance of the unit pooled features of their images, plus
`size_penalty` times the number of images of both
(`statistics.clusters.bottom_up`). A round begins with an empty memory V
(`statistics.pseudo_labels`) with T = 1 / 10 and m = 1 / 2. This is the repelled
loss of Lin et al., A Bottom-Up Clustering Approach to Unsupervised Person
Re-Identification, AAAI 2019. The server averages the models by numbers of
images.

Deviations from the paper: this is its base method. The personalised epoch, with
which a client ends its round early, would need a hook that no other method
uses; the personalised clustering and the personalised update are left out,
because neither their definitions nor code for them could be found. Deviations
from the released code: all rounds have the same number of epochs and one
schedule of rates, where it trains 20 epochs in the first round and one in each
later round (`local.epochs`); features of the clustering are computed with
moments of batch normalisation that are re-estimated at the trained weights
(`method.batch_stats`); a client with fewer than 1 / p images merges one pair
instead of none; the gradient reaches all layers, where its first three blocks
are fixed.
"""

import dataclasses
import math
from typing import Annotated

import jax.numpy as jnp

from fedreid_jax.algorithms.statistics import clusters, pseudo_labels
from fedreid_jax.algorithms.statistics.pseudo_labels import Clusters, Scheme
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array
from fedreid_jax.method.component import Component


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of FedUReID; defaults of the released code."""

  merge: Annotated[
    float,
    Range(1e-3, 1),
    'pairs of clusters that are merged after a round, as a fraction of the '
    "client's images",
  ] = 0.05
  size_penalty: Annotated[
    float, Range(0), 'weight of the sizes in the distance of two clusters'
  ] = 0.003
  temperature: Annotated[float, Range(1e-3), 'temperature of the loss, T'] = 0.1
  momentum: Annotated[
    float, Range(0, 1), 'weight of the old memory in its update, m'
  ] = 0.5


rules = pseudo_labels.rules


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def cluster(
    features: Array, valid: Array, state: Clusters, num: Array
  ) -> Clusters:
    share = jnp.maximum(jnp.floor(options.merge * num), 1).astype(jnp.int32)
    least = num - share * (math.floor(1 / options.merge) - 1)
    left = jnp.where(valid, state.labels, -1).max() + 1
    labels = clusters.bottom_up(
      features,
      state.labels,
      valid,
      jnp.minimum(share, left - jnp.maximum(least, 1)),
      options.size_penalty,
    )
    # Every round begins with an empty memory.
    return Clusters(labels, jnp.zeros_like(state.memory))

  return pseudo_labels.make(
    'fedureid',
    Scheme(
      cluster=cluster,
      clustered='feature',
      before=False,
      temperature=options.temperature,
      momentum=options.momentum,
    ),
  )
