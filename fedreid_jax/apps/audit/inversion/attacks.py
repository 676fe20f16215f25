"""Attacks on statistics of features that a client of DFH could send.

`identities` is figure 5 of DFH: the attacker has the mean feature of every
identity (IFS), which the method does not send. In the positive control the
attacker has the features of one image of each identity.

`statistics` attacks the statistics that the method does send, the rows m, v, p
and q of a client (DFS, `algorithms.dfh`). The paper states that these "should
be first sampled": as in the training, the attacker samples M ~ N(m, v) and
V ~ N(p, q), then a feature M + sqrt(V) e, and reconstructs an image with this
feature. Two controls have the same objective. The negative control has the
values of all sampled features in random order, and the positive control has
the features of real images. The paper argues that DFS reveal less than IFS and
does not attack them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedreid_jax import errors
from fedreid_jax.apps.audit.inversion import goals
from fedreid_jax.apps.audit.inversion.inversion import Weights
from fedreid_jax.apps.audit.inversion.reconstruction import (
  Reconstructed,
  reconstruct,
)
from fedreid_jax.apps.audit.inversion.search import Search
from fedreid_jax.core.types import Array, ClientData
from fedreid_jax.losses import hallucination
from fedreid_jax.training import loaded_run
from fedreid_jax.training.clients import domain_statistics
from fedreid_jax.training.loaded_run import LoadedRun


class Attempt(NamedTuple):
  """Images reconstructed from one kind of information.

  Attributes:
    images: reconstructed.
    clients: number of the client of each image, in the order of the run.
    labels: intended identity of each image in the labels of its client, or
      None if no identity is intended.
  """

  images: Reconstructed
  clients: Int[np.ndarray, ' B']
  labels: Int[np.ndarray, ' B'] | None


def identities(
  run: LoadedRun,
  client: ClientData,
  num: int,
  weights: Weights,
  search: Search,
  scale: float = goals.SCALE,
  measured_by: LoadedRun | None = None,
) -> dict[str, Attempt]:
  """Reconstructs an image of each of a client's first identities.

  Args:
    run: the attacked model.
    client: client with the identities.
    num: largest number of identities.
    weights: of the objective.
    search: settings of the optimisation.
    scale: length of features, see `goals`.
    measured_by: run with the model that measured the mean features, `run` if
      None.

  Raises:
    ConfigError: when the model of `measured_by` has images or features of
      another size.
    DivergedError: when the loss is not finite.
  """
  space = domain_statistics.space(run)
  own = measured_by or run
  loaded_run.same_images(run, own, '--measured_by')
  moments = own.moments(client, domain_statistics.space(own))
  theirs = moments.mean.shape[1]
  ours = run.features(client.images()[:1], space).shape[1]
  if theirs != ours:
    raise errors.ConfigError(
      f'the means have {theirs} features, the attacked model has {ours}',
      '--measured_by',
      'give a run with the same network',
    )
  # An identity without images has no mean.
  present = np.flatnonzero(np.asarray(moments.count))
  num = min(num, len(present))
  goal = goals.identities(moments.mean[present], np.arange(num), space, scale)
  found = reconstruct(run, goal, weights, search)
  index = [one.name for one in run.federation.clients].index(client.name)
  owners, persons = np.full(num, index), present[:num]
  _, one_each = _one_image_each(run, client, num, space)
  control = reconstruct(run, goals.features(one_each, space), weights, search)
  return {
    'identity means': Attempt(found, owners, persons),
    'real feature': Attempt(control, owners, persons),
  }


def statistics(
  run: LoadedRun, num: int, weights: Weights, search: Search
) -> dict[str, Attempt]:
  """Reconstructs images from the DFS of all clients, and from two controls.

  Args:
    run: the attacked model, of the server.
    num: number of images for each client; of real images, which are of
      different identities, the largest number.
    weights: of the objective.
    search: settings of the optimisation; its seed also draws features and
      permutes their values.

  Raises:
    DivergedError: when the loss is not finite.
  """
  space, clients = domain_statistics.space(run), run.federation.clients
  every = jnp.repeat(domain_statistics.of(run), num, axis=0)
  drawn = sampled(
    every, domain_statistics.options(run).negative_variance, search.seed
  )
  # The values of all clients are permuted together, so that samples of one
  # client are no more similar than others.
  shuffled = np.random.default_rng(search.seed).permutation(drawn.ravel())
  owners = np.repeat(np.arange(len(clients)), num)
  persons, real = [], []
  for client in clients:
    labels, features = _one_image_each(run, client, num, space)
    persons.append(labels)
    real.append(features)

  def attempt(wanted, owners, labels=None):
    goal = goals.features(wanted, space)
    return Attempt(reconstruct(run, goal, weights, search), owners, labels)

  return {
    'DFS': attempt(drawn, owners),
    'permuted DFS': attempt(shuffled.reshape(drawn.shape), owners),
    'real feature': attempt(
      np.concatenate(real),
      np.repeat(np.arange(len(clients)), [len(own) for own in persons]),
      np.concatenate(persons),
    ),
  }


def _one_image_each(
  run: LoadedRun, client: ClientData, num: int, space: str
) -> tuple[Int[np.ndarray, ' B'], Float[np.ndarray, 'B D']]:
  """Returns a client's first identities and a feature of an image of each."""
  labels, rows = np.unique(client.labels, return_index=True)
  rows = rows[:num]
  features = run.features(client.images()[rows], space, client.modalities[rows])
  return labels[:num], features


def sampled(
  dfs: Float[Array, 'B 4 D'], negative_variance: str, seed: int
) -> Float[np.ndarray, 'B D']:
  """Samples a feature of a new identity from each of several DFS.

  Args:
    dfs: rows m, v, p and q of each.
    negative_variance: see `hallucination.draw`.
    seed: of the samples.
  """
  draw_key, key = jax.random.split(jax.random.key(seed))
  drawn = hallucination.draw(draw_key, dfs, negative_variance)
  # Variances are of dimensions, as DFS have no covariances.
  noise = jax.random.normal(key, drawn.means.shape)
  return np.asarray(drawn.means + jnp.sqrt(drawn.variances) * noise)
