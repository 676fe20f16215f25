"""Domain feature statistics (DFS) of the clients of a saved run.

DFH's clients send them to the server (`algorithms.dfh`, eq. 3.1). For a run of
a method without this component they are measured on the clients' images with
the model of the run.
"""

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms import dfh
from fedreid_jax.algorithms.statistics import moments
from fedreid_jax.training.loaded_run import LoadedRun


def space(run: LoadedRun) -> str:
  """Returns the field of `Outputs` with the features that DFS describe."""
  if 'dfh' in run.config.components:
    return dfh.SPACES[run.config.dfh.space]
  return 'feature'


def of(run: LoadedRun) -> jax.Array:
  """Returns the DFS of every client, `[N, 4, D]`, rows m, v, p and q.

  They are those that the server stored. If the configuration has other clients
  than the server had, they are measured on the images.
  """
  clients, kept = run.federation.clients, run.states.get('dfh')
  if kept is not None and len(kept) == len(clients):
    return jnp.asarray(kept)
  every = [
    jax.jit(moments.statistics)(run.moments(c, space(run))) for c in clients
  ]
  return jnp.stack(every)
