"""Features of a run's domains, and features hallucinated from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax.algorithms import dfh
from fedreid_jax.algorithms.statistics import moments
from fedreid_jax.losses import hallucination
from fedreid_jax.models import norm
from fedreid_jax.training.loaded_run import LoadedRun

SAMPLE = 120  # images of a domain
NOVEL = 'a new domain'


class Cloud(NamedTuple):
  """Features of one domain.

  Attributes:
    domain: its name.
    features: `[M, D]`.
    modalities: 0 visible, 1 infrared, `[M]`.
  """

  domain: str
  features: np.ndarray
  modalities: np.ndarray


def space(run: LoadedRun) -> str:
  """Returns the kind of features to show, that of DFH's statistics if any."""
  if 'dfh' in run.config.components:
    return dfh.SPACES[run.config.dfh.space]
  return 'feature'


def real(run: LoadedRun, seed: int) -> list[Cloud]:
  """Returns features of some images of every client and target."""
  federation = run.federation
  clouds = {}
  tests = [t.images for t in federation.targets]
  for domain in (*federation.clients, *tests):
    if domain.name in clouds:  # a training domain that is also a target
      continue
    rows = _sample(len(domain.modalities), seed)
    kinds = domain.modalities[rows]
    found = run.features(domain.images()[rows], space(run), kinds)
    clouds[domain.name] = Cloud(domain.name, found, kinds)
  return list(clouds.values())


def _sample(num: int, seed: int) -> np.ndarray:
  rows = np.random.default_rng(seed).permutation(num)[:SAMPLE]
  return np.sort(rows)


def hallucinated(run: LoadedRun, seed: int) -> list[Cloud]:
  """Returns hallucinations of the first client: other domains, then a new one.

  Statistics are drawn anew for each image, from those that the server stored
  or, if the configuration has other clients, from those of the images under the
  model.

  Args:
    run: of a method with the component 'dfh'.
    seed: of images and draws.
  """
  clients, config = run.federation.clients, run.config.dfh
  own, num = clients[0], len(clients)
  rows = _sample(own.num_images, seed)
  alpha = jnp.broadcast_to(jnp.asarray(config.alpha, jnp.float32), (num,))
  dfs = statistics(run)

  feature = run.features(own.images()[rows], space(run), own.modalities[rows])
  dim = feature.shape[1]
  normalised, *_ = norm.standardize(
    jnp.asarray(feature), jnp.ones(dim), jnp.zeros(dim), None
  )

  def one(key, feature, normalised):
    draw_key, novel_key = jax.random.split(key)
    drawn = hallucination.draw(draw_key, dfs, config.negative_variance)
    every = hallucination.per_domain(drawn.means, drawn.variances, normalised)
    if config.novel == 'none':
      return every
    novel = hallucination.novel_domain(
      novel_key,
      config.novel,
      drawn,
      feature,
      normalised,
      jnp.int32(0),
      alpha,
      config.mix_weights,
      config.mix_own,
    )
    return jnp.concatenate([every, novel[None]])

  found = jax.jit(jax.vmap(one, out_axes=1))(
    jax.random.split(jax.random.key(seed), len(rows)),
    feature[:, None],
    normalised[:, None],
  )
  names = [client.name for client in clients] + [NOVEL]
  return [
    Cloud(name, np.asarray(features[:, 0]), own.modalities[rows])
    for name, features in zip(names[1:], found[1:], strict=False)
  ]


def statistics(run: LoadedRun) -> jax.Array:
  """Returns the DFS of every client, `[N, 4, D]`."""
  kept = run.states.get('dfh')
  clients = run.federation.clients
  if kept is not None and len(kept) == len(clients):
    return jnp.asarray(kept)
  every = [
    jax.jit(moments.statistics)(run.moments(c, space(run))) for c in clients
  ]
  return jnp.stack(every)
