"""Clusters of clients without labels, compared with their identities.

After a round the report compares the clusters of a client with the identities
that its training does not know. Adjusted mutual information (Vinh et al., JMLR
2010) is 1 for the identities and 0 on average for random clusters; an image
without a cluster is a cluster of its own. It needs scikit-learn.
"""

import importlib.util
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from fedreid_jax.core.types import ClientData
from fedreid_jax.method.component import Component
from fedreid_jax.round.client_store import ClientStore

NOTICE = (
  'without scikit-learn the adjusted mutual information of clusters is not '
  "reported: pip install 'fedreid_jax[viz]'"
)


def of_method(components: Sequence[Component]) -> str:
  """Returns the component whose clients have clusters, '' without one."""
  names = (c.name for c in components if 'pseudo_labels' in c.properties)
  return next(names, '')


def notice(components: Sequence[Component]) -> str:
  """Returns a line for users if a metric of clusters cannot be computed."""
  return NOTICE if of_method(components) and not _has_library() else ''


def _has_library() -> bool:
  return importlib.util.find_spec('sklearn') is not None


def measured(
  name: str,
  clients: Sequence[ClientData],
  store: ClientStore,
  cohort: Sequence[int] | np.ndarray,
) -> dict[str, dict[str, float]]:
  """Returns the metrics of each client of a cohort that has no labels.

  They are those of `compare`, by the name of the client.

  Args:
    name: of the component with the clusters.
    cohort: canonical indices of the clients.
  """
  found: dict[str, dict[str, float]] = {}
  for k in map(int, cohort):
    identities = clients[k].identities
    if identities is None:
      continue
    # The state of a client that is a real site stays there.
    if (state := store.row(k).states.get(name)) is not None:
      labels = np.asarray(state.labels)[: len(identities)]
      found[clients[k].name] = compare(labels, identities)
  return found


def compare(
  labels: Int[np.ndarray, ' M'], identities: Int[np.ndarray, ' M']
) -> dict[str, float]:
  """Returns the metrics of the clusters of one client, -1 for no cluster.

  They are the numbers of clusters and of identities, and with scikit-learn the
  adjusted mutual information 'ami'.
  """
  found = {
    'clusters': float(len(np.unique(labels[labels >= 0]))),
    'identities': float(len(np.unique(identities))),
  }
  if _has_library():
    from sklearn import metrics

    alone = labels.max(initial=-1) + 1 + np.arange(len(labels))
    each = np.where(labels < 0, alone, labels)
    score = metrics.adjusted_mutual_info_score(identities, each)
    found['ami'] = float(score)
  return found
