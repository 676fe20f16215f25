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

`evaluation.batch_stats='modality'` measures the moments of the visible and of
the infrared images apart, and a test image is normalised by those of its own
modality. A mean of the moments of clients of one modality each fits neither.

This is not in the papers, which test with running moments; it is a second
protocol, reported beside theirs.
"""

import operator
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import batch_stats
from fedreid_jax.core.simulation import Executor
from fedreid_jax.core.types import ClientData, Flat
from fedreid_jax.evaluation.evaluator import Models, Source

# Modalities that are measured apart, by `evaluation.batch_stats`; None are all
# images, and 'running' measures nothing.
MEASURED: dict[str, tuple[int | None, ...]] = {
  'source': (None,),
  'modality': (0, 1),
}


def check(rule: str, clients: Sequence[ClientData]) -> None:
  """Refuses to measure a modality of which no client has an image.

  Args:
    rule: `evaluation.batch_stats`.
    clients: those of the run.

  Raises:
    ConfigError: when there is none.
  """
  if rule != 'modality':
    return
  for kind, name in enumerate(('visible', 'infrared')):
    if not any((c.modalities == kind).any() for c in clients):
      raise errors.ConfigError(
        f'no client has an image that is {name}',
        'evaluation.batch_stats',
        "set it to 'source'",
      )


def make(
  executor: Executor,
  groups: np.ndarray,
  names: Sequence[str],
  sent: dict[str, Counter],
  rule: str = 'source',
) -> Source:
  """Builds `(models by name) -> models with the moments of their sources`.

  The result is a tuple of models for all test images, or for those of each
  modality.

  Args:
    executor: has the clients' images.
    groups: group of every client, int32 `[N]`; model 'cluster:G' is that of the
      clients of group G, a name that is neither 'cluster:' nor 'client:' is of
      all clients.
    names: of the clients, `N`; model 'client:NAME' is of one.
    sent: bytes by direction, `up` and `down`, counted as 'batch_stats'.
    rule: 'source' or 'modality'.
  """
  num = len(names)
  own = {f'client:{name}': k for k, name in enumerate(names)}

  def measure(models: Flat, chosen: np.ndarray, personal: Flat):
    """Returns, for every modality, the moments of every client."""
    received = sum(x[0].nbytes for x in (models or personal).values())
    sent['down']['batch_stats'] += received * num
    found = []
    for modality in MEASURED[rule]:
      layers = executor.moments(models, chosen, personal, modality)
      sent['up']['batch_stats'] += sum(
        x.nbytes for x in jax.tree.leaves(layers)
      )
      found.append(
        [jax.tree.map(operator.itemgetter(k), layers) for k in range(num)]
      )
    return found

  def one(name: str, variables: Flat) -> list[Flat]:
    whole = {n: np.asarray(x)[None] for n, x in variables.items()}
    members = list(range(num))
    if name.startswith('cluster:'):
      group = int(name.removeprefix('cluster:'))
      members = [k for k in members if groups[k] == group]
    return [
      batch_stats.install(
        variables, batch_stats.pool(parts[k] for k in members)
      )
      for parts in measure(whole, np.zeros(num, np.int32), {})
    ]

  def personal(models: Models) -> dict[str, list[Flat]]:
    """Measures every client's own model on its own images, all at once."""
    some = next(iter(models.values()))
    rows = {n: np.zeros((num, *x.shape), x.dtype) for n, x in some.items()}
    for name, variables in models.items():
      for leaf, value in variables.items():
        rows[leaf][own[name]] = value
    every = measure({}, np.zeros(num, np.int32), rows)
    return {
      name: [
        batch_stats.install(variables, parts[own[name]]) for parts in every
      ]
      for name, variables in models.items()
    }

  def source(models: Models) -> tuple[Models, ...]:
    mine = {name: x for name, x in models.items() if name in own}
    found = personal(mine) if mine else {}
    found |= {n: one(n, x) for n, x in models.items() if n not in own}
    return tuple(
      {name: found[name][k] for name in models}
      for k in range(len(MEASURED[rule]))
    )

  return source
