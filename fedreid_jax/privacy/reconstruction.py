"""What a model gives away of a client: images reconstructed, and who finds them.

The attack of DFH's section 4.5: whoever has the model and the mean feature of
every identity restores images of these identities (`inversion`). How much they
show is measured, not only looked at: they are queries for the client's own
images, under a model that should be another than the one attacked.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.core.types import ClientData
from fedreid_jax.evaluation import distances as distance_lib
from fedreid_jax.evaluation import evaluate_ranking
from fedreid_jax.privacy import inversion
from fedreid_jax.privacy.inversion import Search, Weights
from fedreid_jax.training.snapshot import Snapshot


class Reconstructed(NamedTuple):
  """Images reconstructed of a client.

  Attributes:
    labels: identity that each should show, in the client's labels, `[B]`.
    photos: uint8 `[B, H, W, ch]`.
    noise: what they began as, uint8 `[B, H, W, ch]`.
    losses: 'before' and 'after', at full resolution, unmoved: the `loss` and
      its parts.
  """

  labels: np.ndarray
  photos: np.ndarray
  noise: np.ndarray
  losses: dict[str, dict[str, float]]


class Verdict(NamedTuple):
  """Whom the images of a client are taken for.

  Attributes:
    rank1: percent of queries whose nearest image of the client shows the right
      person: of the 'restored' images, of the 'noise' they began as, of 'real'
      images (one of each reconstructed identity, absent where no identity has two),
      and what to expect by 'chance'.
    nearest: rows of the client's images, nearest to a reconstructed one first,
      `[B, M]`.
  """

  rank1: dict[str, float]
  nearest: np.ndarray


def reconstruct(
  run: Snapshot,
  client: ClientData,
  num_identities: int,
  weights: Weights,
  search: Search,
) -> Reconstructed:
  """Restores an image of each of a client's first identities.

  Args:
    run: the model that is attacked.
    client: whose identities.
    num_identities: at most so many.
    weights: of the objective.
    search: how.

  Raises:
    ConfigError: to use half the resolution of a model of one size only.
    DivergedError: when the loss is not finite.
  """
  if search.steps[0] and run.config.model.pool == 'flatten':
    raise errors.ConfigError(
      'pooling by flatten is of one resolution', '--steps', 'use 0,N'
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
  reconstructed: Reconstructed, client: ClientData, run: Snapshot
) -> Verdict:
  """Asks a model whom reconstructed images show.

  Args:
    reconstructed: images of a client.
    client: whose.
    run: with the model that judges.

  Raises:
    ConfigError: when its images are of another size.
  """
  theirs, ours = run.federation.image_shape, reconstructed.photos.shape[1:]
  if theirs != ours:
    raise errors.ConfigError(
      f'it sees images of {list(theirs)}, these are of {list(ours)}',
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
      'single_shot',  # no camera is left out
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


def same_model(one: Snapshot, other: Snapshot) -> bool:
  """Returns whether two runs have the same model, leaf by leaf."""
  a, b = one.variables, other.variables
  return a.keys() == b.keys() and all(
    np.array_equal(a[name], b[name]) for name in a
  )
