"""Domain feature statistics (DFS) of the clients of a saved run.

DFH's clients send them to the server (`algorithms.dfh`, eq. 3.1). For a run of
a method without this component they are measured on the clients' images with
the model of the run.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fedreid_jax.algorithms import dfh
from fedreid_jax.algorithms.statistics import moments
from fedreid_jax.method.component import Component
from fedreid_jax.training import build
from fedreid_jax.training.loaded_run import LoadedRun


def sender(run: LoadedRun) -> Component | None:
  """Returns the component whose clients send DFS, None without one."""
  components = build.load_components(run.config)
  return next((c for c in components if c.info.domain_statistics), None)


def options(run: LoadedRun) -> Any:
  """Returns the hyper-parameters of the component whose clients send DFS.

  They are the defaults of DFH for a run without one.
  """
  found = sender(run)
  return run.config[found.name] if found else dfh.Options()


def space(run: LoadedRun) -> str:
  """Returns the field of `Outputs` with the features that DFS describe."""
  found = sender(run)
  return found.info.domain_statistics if found else 'feature'


def sent(run: LoadedRun) -> jax.Array | None:
  """Returns the DFS that the server stored, `[N, 4, D]`, None without any.

  It is None as well if the configuration has another number of clients.
  """
  found = sender(run)
  kept = run.states.get(found.name) if found else None
  if kept is None or len(kept) != len(run.federation.clients):
    return None
  return jnp.asarray(kept)


def of(run: LoadedRun) -> jax.Array:
  """Returns the DFS of every client, `[N, 4, D]`, rows m, v, p and q.

  They are measured on the images unless the server stored them (`sent`).
  """
  kept = sent(run)
  if kept is not None:
    return kept
  which, statistics = space(run), jax.jit(moments.statistics)
  every = [statistics(run.moments(c, which)) for c in run.federation.clients]
  return jnp.stack(every)
