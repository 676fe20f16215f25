"""Cluster Contrast under federated averaging: clients without labels.

Dai, Wang, Yuan, Zhu and Tan, Cluster Contrast for Unsupervised Person
Re-Identification, ACCV 2022. A client clusters the unit features of its images
by DBSCAN on their re-ranked Jaccard distances (`statistics.clusters`), after
every round and once before round 0. The memory V (`statistics.pseudo_labels`)
begins a round with the unit mean feature of each cluster,

  V_y = unit(mean of the unit features x of cluster y),

and its temperature T is 0.05. Federated unsupervised re-identification uses
this method as a base line (Weng et al., FedUCC, IEEE Transactions on Multimedia
2023).

Deviations from the paper: clients train on random batches, because the batches
of a round are chosen before the clusters are known; the paper draws 16 clusters
and 16 images of each. The images are clustered once in a round, with the model
that the client has trained and moments of batch normalisation that are
re-estimated at its weights (`method.batch_stats`), and the next round begins
from the server's model; the paper clusters before every epoch, with running
moments. Deviations from the released code: a batch without any clustered image
has loss 0.
"""

import dataclasses
from typing import Annotated

from fedreid_jax.algorithms.statistics import clusters, pseudo_labels
from fedreid_jax.algorithms.statistics.pseudo_labels import Clusters, Scheme
from fedreid_jax.core.options import Checked, Range
from fedreid_jax.core.types import Array
from fedreid_jax.method.component import Component


@dataclasses.dataclass(frozen=True)
class Options(Checked):
  """Hyper-parameters of Cluster Contrast; defaults of the released code."""

  eps: clusters.Eps = 0.6
  min_samples: clusters.MinSamples = 4
  k1: clusters.K1 = 30
  k2: clusters.K2 = 6
  temperature: Annotated[float, Range(1e-3), 'temperature of the loss, T'] = (
    0.05
  )
  momentum: Annotated[
    float, Range(0, 1), 'weight of the old memory in its update, m'
  ] = 0.2


rules = pseudo_labels.rules


def make(options: Options = Options()) -> Component:
  """Builds the component."""

  def cluster(
    features: Array, valid: Array, state: Clusters, num: Array
  ) -> Clusters:
    del state, num
    labels, means = clusters.by_neighbours(
      features,
      valid,
      eps=options.eps,
      min_samples=options.min_samples,
      k1=options.k1,
      k2=options.k2,
    )
    return Clusters(labels, means)

  return pseudo_labels.make(
    'cluster_contrast',
    Scheme(
      cluster=cluster,
      clustered='embedding',
      before=True,
      temperature=options.temperature,
      momentum=options.momentum,
    ),
  )
