"""Features of some identities, and hallucinated features of a new domain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.core.types import ClientData
from fedreid_jax.losses import hallucination
from fedreid_jax.models.layers import norm
from fedreid_jax.training import loaded_run
from fedreid_jax.training.loaded_run import LoadedRun

IDENTITIES = 3  # of a domain, as in the paper
IMAGES = 24  # largest number per identity
BATCH = 120  # images whose moments normalise features
NOVEL = 'novel domain'


class Cloud(NamedTuple):
  """Features of one domain or person.

  Attributes:
    name: name of the domain or the person.
    features: features of the images, `[M, D]`.
    kinds: number of the marker of each feature, `[M]`.
  """

  name: str
  features: np.ndarray
  kinds: np.ndarray


def chosen(client: ClientData, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Chooses images of three identities of a client at random.

  Returns:
    (rows of the images, identity of each as 0, 1 or 2), `[M]` both.
  """
  rng = np.random.default_rng(seed)
  persons = rng.permutation(np.unique(client.labels))[:IDENTITIES]
  own = [np.flatnonzero(client.labels == person) for person in persons]
  rows = [np.sort(rng.permutation(r)[:IMAGES]) for r in own]
  kinds = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
  return np.concatenate(rows), kinds


def real(run: LoadedRun, seed: int) -> list[Cloud]:
  """Returns features of the chosen images of every client."""
  clouds = []
  for client in run.federation.clients:
    rows, kinds = chosen(client, seed)
    clouds.append(Cloud(client.name, _features(run, client, rows), kinds))
  return clouds


def _features(
  run: LoadedRun, client: ClientData, rows: np.ndarray
) -> np.ndarray:
  return run.features(
    client.images()[rows],
    loaded_run.statistics_space(run),
    client.modalities[rows],
  )


def hallucinated(run: LoadedRun, source: str, seed: int) -> list[Cloud]:
  """Returns features of a novel domain, hallucinated from those of a client.

  If the method has no novel domain (`dfh.novel` is 'none'), the result has a
  cloud for each other client.

  Args:
    run: run of a method whose clients send statistics of domains.
    source: name of the client, '' for the first.
    seed: random seed of images and draws.
  """
  config, clients = loaded_run.statistics_options(run), run.federation.clients
  own = run.client(source)
  index = [client.name for client in clients].index(own.name)
  rows, kinds = chosen(own, seed)
  batch = np.random.default_rng(seed).permutation(own.num_images)[:BATCH]
  both = jnp.asarray(_features(run, own, np.concatenate([rows, batch])))
  feature, dim = both[: len(rows)], both.shape[1]
  # As in the training, the moments are those of a random batch, not of the few
  # chosen images.
  in_batch = jnp.arange(len(both)) >= len(rows)
  normalised, *_ = norm.standardize(
    both, jnp.ones(dim), jnp.zeros(dim), in_batch
  )
  normalised = normalised[: len(rows)]

  # The mean, the variance and the weights of the domains are drawn once for all
  # images, as for a batch of the training, so that one affine map with a factor
  # per channel gives all features of DFH.
  draw_key, novel_key = jax.random.split(jax.random.key(seed))
  drawn = hallucination.draw(
    draw_key, loaded_run.domain_statistics(run), config.negative_variance
  )
  if config.novel == 'none':
    every = hallucination.per_domain(drawn.means, drawn.variances, normalised)
    return [
      Cloud(client.name, np.asarray(features), kinds)
      for client, features in zip(clients, every, strict=True)
      if client.name != own.name
    ]
  alpha = jnp.asarray(config.alpha, jnp.float32)
  novel = hallucination.novel_domain(
    novel_key,
    config.novel,
    drawn,
    feature,
    normalised,
    jnp.int32(index),
    jnp.broadcast_to(alpha, len(clients)),
    config.mix_weights,
    config.mix_own,
  )
  return [Cloud(NOVEL, np.asarray(novel), kinds)]
