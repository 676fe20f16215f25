"""Clusters of clients without labels, compared with their identities.

This is the only reader of `ClientData.identities`, after a round and for users:
no training, aggregation or choice of a checkpoint depends on it. Adjusted
mutual information (Vinh et al., JMLR 2010) is 1 for the identities and 0 on
average for random clusters; an image without a cluster is a cluster of its own.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.method.component import Component
from fedreid_jax.round.client_store import ClientStore


def measured(
  components: Sequence[Component],
  clients: Sequence[ClientData],
  store: ClientStore,
  cohort: Sequence[int] | np.ndarray,
) -> dict[str, dict[str, float]]:
  """Returns the metrics of each client of a cohort that has no labels.

  They are the numbers of clusters and of identities, and the adjusted mutual
  information 'ami', by the name of the client.

  Args:
    cohort: canonical indices of the clients.

  Raises:
    ConfigError: without scikit-learn.
  """
  names = [c.name for c in components if 'pseudo_labels' in c.properties]
  found: dict[str, dict[str, float]] = {}
  for k in map(int, cohort if names else ()):
    identities = clients[k].identities
    # The state of a client that is a real site stays there.
    state = store.row(k).states.get(names[0])
    if identities is not None and state is not None:
      labels = np.asarray(state.labels)[: len(identities)]
      found[clients[k].name] = compare(labels, identities)
  return found


def compare(
  labels: Int[np.ndarray, ' M'], identities: Int[np.ndarray, ' M']
) -> dict[str, float]:
  """Returns the metrics of the clusters of one client, -1 for no cluster.

  Raises:
    ConfigError: without scikit-learn.
  """
  try:
    from sklearn import metrics
  except ImportError as error:
    raise errors.ConfigError(
      'the quality of clusters needs scikit-learn',
      'data.unlabelled',
      "install 'fedreid_jax[viz]'",
    ) from error
  alone = labels.max(initial=-1) + 1 + np.arange(len(labels))
  each = np.where(labels < 0, alone, labels)
  return {
    'ami': float(metrics.adjusted_mutual_info_score(identities, each)),
    'clusters': float(len(np.unique(labels[labels >= 0]))),
    'identities': float(len(np.unique(identities))),
  }
