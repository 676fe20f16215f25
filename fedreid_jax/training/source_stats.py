"""Batch-normalisation moments of source images under the tested models.

The running moments of averaged models fit none of them, and the running moments
of a client's own model follow its weights with a delay. With
`evaluation.batch_stats='source'` every client measures the moments of its
images at the frozen weights (`method.batch_stats`) and returns the count, mean
and variance of every layer. The moments of all clients of a model are merged by
images, with the variance between clients; a client's own model gets the moments
of that client's images. No image of a target is used. With
`evaluation.batch_stats='modality'` the visible and the infrared images are
measured separately, and a test image is normalised by the moments of its
modality.

The papers test with running moments. This is a second protocol, whose results
are reported beside those of the papers' protocol.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import model_names, trees
from fedreid_jax.core.types import ClientData, Flat
from fedreid_jax.evaluation.evaluator import Models, Source
from fedreid_jax.method import batch_stats
from fedreid_jax.method.batch_stats import Layers
from fedreid_jax.round.client_store import OnDemand
from fedreid_jax.round.simulated import Simulated

# Modalities that are measured separately, by `evaluation.batch_stats`; None
# means all images, and 'running' measures nothing. A mean over clients of one
# modality each fits neither modality.
MEASURED: dict[str, tuple[int | None, ...]] = {
  'source': (None,),
  'modality': (0, 1),
}


def check(rule: str, clients: Sequence[ClientData]) -> None:
  """Refuses to measure a modality (`rule`) of which no client has an image."""
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
  simulated: Simulated,
  groups: np.ndarray,
  names: Sequence[str],
  sent: dict[str, Counter],
  rule: str = 'source',
) -> Source:
  """Builds `(models by name) -> models with the moments of their sources`.

  The result is a tuple with models for all test images, or with models for the
  test images of each modality. `groups` are int32 `[N]`: model 'cluster:G'
  belongs to the clients of group G, model 'client:NAME' to one of the `N`
  names, and any other to all clients. The bytes are counted in `sent`, by `up`
  and `down`, as 'batch_stats'.
  """
  num = len(names)
  client_models = [*map(model_names.of_client, names)]
  own = {*client_models}

  def measure(
    models: Flat, received: int, own_of: Callable[[np.ndarray], Flat] | None
  ) -> Iterator[Iterator[Layers]]:
    """Yields, for every modality, the moments of every client in turn."""
    sent['down']['batch_stats'] += received * num
    for modality in MEASURED[rule]:
      chosen = np.zeros(num, np.int32)
      # The clients augment images as in training, because the weights are
      # fitted to such images: a crop of a padded image has a black border.
      yield map(counted, simulated.moments(models, chosen, own_of, modality))

  def counted(layers: Layers) -> Layers:
    sent['up']['batch_stats'] += trees.num_bytes(layers)
    return layers

  def one(name: str, variables: Flat) -> list[Layers]:
    whole = {n: np.asarray(x)[None] for n, x in variables.items()}
    group = model_names.group_of(name)
    return [
      batch_stats.pool(
        layers
        for k, layers in enumerate(parts)
        if group is None or groups[k] == group
      )
      for parts in measure(whole, trees.num_bytes(variables), None)
    ]

  def personal(
    models: Models, chosen: Sequence[str]
  ) -> dict[str, list[Layers]]:
    """Measures the clients' own models of `chosen`, each on its own images."""
    some = models[chosen[0]]

    def own_of(members: np.ndarray) -> Flat:
      """Returns the models of some clients, zeros for those without one."""
      rows = {
        n: np.zeros((len(members), *x.shape), x.dtype) for n, x in some.items()
      }
      for row, k in enumerate(members):
        for leaf, value in models.get(client_models[k], {}).items():
          rows[leaf][row] = value
      return rows

    found: dict[str, list[Layers]] = {name: [] for name in chosen}
    for parts in measure({}, trees.num_bytes(some), own_of):
      for k, layers in enumerate(parts):
        if (name := client_models[k]) in found:
          found[name].append(layers)
    return found

  def source(models: Models) -> tuple[Models, ...]:
    mine = [name for name in models if name in own]
    found = personal(models, mine) if mine else {}
    found |= {n: one(n, models[n]) for n in models if n not in own}

    def of_images(kind: int) -> Models:
      def read(name: str) -> Flat:
        return batch_stats.install(models[name], found[name][kind])

      # All models may not fit in memory; their moments do.
      return OnDemand(models, read)

    return tuple(map(of_images, range(len(MEASURED[rule]))))

  return source
