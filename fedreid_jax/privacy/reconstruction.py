"""Reconstruction of a client's images from a model, and its success.

In the attack of DFH's section 4.5, the attacker has the model and the mean
feature of every identity and reconstructs images of these identities
(`inversion`). The success is measured by retrieval: the images are queries for
the client's own images, under a model that should differ from the attacked one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, UInt8

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import evaluate_ranking
from fedreid_jax.privacy import inversion
from fedreid_jax.privacy.inversion import Search, Weights
from fedreid_jax.training.loaded_run import LoadedRun


class Reconstructed(NamedTuple):
  """Reconstructed images of a client.

  Attributes:
    labels: intended identity of each, in the client's labels.
    photos: reconstructed pixels.
    noise: initial noise as pixels.
    losses: 'before' and 'after', at full resolution and not rolled: the `loss`
      and its parts.
  """

  labels: Int[np.ndarray, ' B']
  photos: UInt8[np.ndarray, 'B H W ch']
  noise: UInt8[np.ndarray, 'B H W ch']
  losses: dict[str, dict[str, float]]


class Verdict(NamedTuple):
  """Retrieval results of reconstructed images.

  Attributes:
    rank1: percent of queries whose nearest image of the client shows the right
      person: for the 'restored' images, for the initial 'noise', for 'real'
      images (one of each reconstructed identity, absent if no identity has
      two), and by 'chance'.
    nearest: rows of the client's images, in order of the distance to each
      reconstructed one.
  """

  rank1: dict[str, float]
  nearest: Int[np.ndarray, 'B M']


def reconstruct(
  run: LoadedRun,
  client: ClientData,
  num_identities: int,
  weights: Weights,
  search: Search,
) -> Reconstructed:
  """Reconstructs an image of each of a client's first identities.

  Args:
    run: the attacked model.
    client: owner of the identities.
    num_identities: largest number of identities.
    weights: of the objective.
    search: settings of the optimisation.

  Raises:
    ConfigError: for half the resolution with a model of a fixed size.
    DivergedError: when the loss is not finite.
  """
  if search.steps[0] and run.config.model.pool == 'flatten':
    raise errors.ConfigError(
      'pooling by flatten needs one resolution', '--steps', 'use 0,N'
    )
  moments = run.moments(client)
  present = np.flatnonzero(np.asarray(moments.count))
  num = min(num_identities, len(present))
  loss = inversion.make_loss(
    run.model, run.variables, moments.mean[present], np.arange(num), weights
  )
  mean, std = (
    jnp.asarray(v, jnp.float32)
    for v in (run.federation.mean, run.federation.std)
  )
  limits = -mean / std, (1.0 - mean) / std
  shape = num, *run.federation.image_shape
  images, noise = inversion.reconstruct(loss, shape, limits, search)

  def photos(x):
    values = jnp.clip(jnp.round((x * std + mean) * 255.0), 0.0, 255.0)
    return np.asarray(values.astype(jnp.uint8))

  losses = {}
  for when, x in (('before', noise), ('after', images)):
    total, parts = jax.jit(loss)(x)
    losses[when] = {n: float(v) for n, v in {'loss': total, **parts}.items()}
  if not all(np.isfinite(v) for v in losses['after'].values()):
    raise errors.DivergedError(
      'the loss of reconstructed images is not finite', '--steps', 'try 0,N'
    )
  return Reconstructed(present[:num], photos(images), photos(noise), losses)


def judge(
  reconstructed: Reconstructed, client: ClientData, run: LoadedRun
) -> Verdict:
  """Measures retrieval with reconstructed images as queries.

  Args:
    reconstructed: images of a client.
    client: owner of the gallery.
    run: with the judging model.

  Raises:
    ConfigError: when its images have another size.
  """
  theirs, ours = run.federation.image_shape, reconstructed.photos.shape[1:]
  if theirs != ours:
    raise errors.ConfigError(
      f'the judge has images of {list(theirs)}, these are of {list(ours)}',
      '--judge',
      'give a run on images of the same size',
    )
  images, labels = client.images(), client.labels
  gallery = run.ranked(images, client.modalities)

  def ask(queries, asked, seen):
    blocks = distance_lib.squared_blocks(
      queries, gallery[seen], run.config.evaluation.metric
    )
    distance = np.concatenate(list(blocks))
    found = evaluate_ranking(
      distance,
      asked,
      labels[seen],
      np.zeros(len(asked), int),
      np.zeros(len(seen), int),
      'single_shot',  # drops no camera
      ranks=(1,),
    )
    return float(found['rank1']), distance

  everything = np.arange(len(labels))
  rank1, distance = ask(
    run.ranked(reconstructed.photos), reconstructed.labels, everything
  )
  shares = [np.mean(labels == person) for person in reconstructed.labels]
  found = {
    'restored': rank1,
    'noise': ask(
      run.ranked(reconstructed.noise), reconstructed.labels, everything
    )[0],
    'chance': 100.0 * float(np.mean(shares)),
  }
  first = [np.flatnonzero(labels == person) for person in reconstructed.labels]
  rows = np.asarray([own[0] for own in first if len(own) > 1], int)
  if len(rows):
    others = np.setdiff1d(everything, rows)
    found['real'] = ask(gallery[rows], labels[rows], others)[0]
  return Verdict(found, np.argsort(distance, axis=1, kind='stable'))


def same_model(one: LoadedRun, other: LoadedRun) -> bool:
  """Returns whether two runs have equal models."""
  a, b = one.variables, other.variables
  return a.keys() == b.keys() and all(
    np.array_equal(a[name], b[name]) for name in a
  )
