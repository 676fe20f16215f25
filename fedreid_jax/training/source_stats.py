"""Batch-normalisation moments of source images under the tested models.

After an average of models the running moments belong to none of them, and those
of a client's own model follow its weights with a delay. With
`evaluation.batch_stats='source'` every client measures the moments of its own
images at the frozen weights (`core.batch_stats`) and returns the count, mean
and variance of every layer; those of all clients of a model are merged by
images, with the variance between clients. A client's own model gets those of
its own images. Images are augmented as in training, because the weights are
fitted to the moments of such images: those of plain images differ (a crop of a
padded image has a black border). No image of a target is used.

This is not in the papers, which test with running moments; it is a second
protocol, reported beside theirs.
"""

import operator
from collections import Counter
from collections.abc import Callable, Sequence

import jax
import numpy as np

from fedreid_jax.core import batch_stats
from fedreid_jax.core.simulation import Executor
from fedreid_jax.core.types import Flat

Models = dict[str, Flat]


def make(
  executor: Executor,
  groups: np.ndarray,
  names: Sequence[str],
  sent: dict[str, Counter],
) -> Callable[[Models], Models]:
  """Builds `(models by name) -> models with the moments of their sources`.

  Args:
    executor: has the clients' images.
    groups: group of every client, int32 `[N]`; model 'cluster:G' is that of the
      clients of group G, a name that is neither 'cluster:' nor 'client:' is of
      all clients.
    names: of the clients, `N`; model 'client:NAME' is of one.
    sent: bytes by direction, `up` and `down`, counted as 'batch_stats'.
  """
  num = len(names)
  own = {f'client:{name}': k for k, name in enumerate(names)}

  def measure(models: Flat, chosen: np.ndarray, personal: Flat):
    layers = executor.moments(models, chosen, personal)
    received = sum(x[0].nbytes for x in (models or personal).values())
    returned = sum(x.nbytes for x in jax.tree.leaves(layers))
    sent['down']['batch_stats'] += received * num
    sent['up']['batch_stats'] += returned
    return [jax.tree.map(operator.itemgetter(k), layers) for k in range(num)]

  def one(name: str, variables: Flat) -> Flat:
    whole = {n: np.asarray(x)[None] for n, x in variables.items()}
    parts = measure(whole, np.zeros(num, np.int32), {})
    if name.startswith('cluster:'):
      group = int(name.removeprefix('cluster:'))
      parts = [x for k, x in enumerate(parts) if groups[k] == group]
    return batch_stats.install(variables, batch_stats.pool(parts))

  def personal(models: Models) -> Models:
    """Measures every client's own model on its own images, all at once."""
    some = next(iter(models.values()))
    rows = {n: np.zeros((num, *x.shape), x.dtype) for n, x in some.items()}
    for name, variables in models.items():
      for leaf, value in variables.items():
        rows[leaf][own[name]] = value
    parts = measure({}, np.zeros(num, np.int32), rows)
    return {
      name: batch_stats.install(variables, parts[own[name]])
      for name, variables in models.items()
    }

  def source(models: Models) -> Models:
    mine = {name: x for name, x in models.items() if name in own}
    found = personal(mine) if mine else {}
    return {
      name: found[name] if name in own else one(name, variables)
      for name, variables in models.items()
    }

  return source
