"""The gradient of the identity loss that an attacker observes.

It is the gradient of the mean cross-entropy of some images with respect to the
parameters that clients share. If the run shares no classifier, a random one is
used, whose gradient is not observed.

With noise the gradient is that of a step of DP-SGD (Abadi et al., CCS 2016,
algorithm 1): the gradients of the B images are scaled to norm 1, as by a clip
below the norm of each, and normal noise of the standard deviation z is added to
their sum:

  (sum_i g_i / |g_i| + z N(0, 1)) / B.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedreid_jax.apps.audit.gradient.gradient_search import Gradient
from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import identity
from fedreid_jax.training.loaded_run import LoadedRun

CLASSIFIER = 'params/classifier/'
_SMALLEST = 1e-12  # norm of a gradient that vanishes


class Sent(NamedTuple):
  """A message of the client.

  Attributes:
    images: number of images of a gradient, B.
    noise: standard deviation of the noise over the clip, z; 0 sends the
      gradient as it is.
  """

  images: int = 1
  noise: float = 0.0


def of(run: LoadedRun, persons: int) -> Gradient:
  """Returns `(pixels, labels) -> gradient` of the shared parameters.

  Args:
    run: the attacked model.
    persons: number of the client's persons.
  """
  head = _head(run, persons)
  return lambda x, y: _gradient(run, head, x, y)


def clipped(gradient: Gradient) -> Gradient:
  """Returns a function of the mean of single images' gradients of norm 1.

  Args:
    gradient: `(images [B, H, W, ch], labels [B]) -> gradient` by parameter.
  """

  def one(x: Array, y: Array) -> Flat:
    found = gradient(x[None], y[None])
    squares = jnp.stack([jnp.square(part).sum() for part in found.values()])
    norm = jnp.maximum(jnp.sqrt(squares.sum()), _SMALLEST)
    return {name: part / norm for name, part in found.items()}

  def mean(x: Array, y: Array) -> Flat:
    every = jax.vmap(one)(x, y)
    return {name: part.mean(0) for name, part in every.items()}

  return mean


def noisy(mean: Flat, sent: Sent, key: Array) -> Flat:
  """Adds the noise of a sum, divided by `B`, to a mean of clipped gradients.

  Args:
    mean: of gradients of norm 1, by parameter.
    sent: noise multiplier and number of images, `B`.
    key: of the noise.
  """
  found: Flat = {}
  for place, (name, part) in enumerate(sorted(mean.items())):
    noise = jax.random.normal(jax.random.fold_in(key, place), part.shape)
    found[name] = part + sent.noise / sent.images * noise
  return found


def _head(run: LoadedRun, persons: int) -> Array | None:
  """Returns a random classifier `[D, C]` where the run shares none."""
  kernel = run.variables.get(f'{CLASSIFIER}kernel')
  # A classifier may have fewer columns than the client has persons.
  if kernel is not None and kernel.shape[-1] >= persons:
    return None
  outputs = jax.eval_shape(
    lambda: run.model.apply(
      run.variables, jnp.zeros((1, *run.federation.image_shape)), train=False
    )[0]
  )
  size = outputs.embedding.shape[1]
  # The variance 1 / D keeps the scores in the range of the embedding.
  return jax.random.normal(jax.random.key(0), (size, persons)) / size**0.5


def _gradient(run: LoadedRun, head: Array | None, x: Array, y: Array) -> Flat:
  """Returns the gradient of the cross-entropy by shared parameter."""
  params, moments = param_filter.trainable(run.variables)
  mean, std = (
    jnp.asarray(v, jnp.float32)
    for v in (run.federation.mean, run.federation.std)
  )
  fixed = {} if head is None else _classifier(params)
  learned = {n: v for n, v in params.items() if n not in fixed}

  def loss(learned: Flat) -> Array:
    # A client that sends gradients of one image has to use the running moments
    # of batch normalisation, since a batch of one image has none.
    outputs, _ = run.model.apply(
      {**moments, **fixed, **learned}, (x - mean) / std, train=False
    )
    scores = outputs.logits if head is None else outputs.embedding @ head
    return identity.cross_entropy(scores, y, jnp.ones(len(y), bool))

  return jax.grad(loss)(learned)


def _classifier(params: Flat) -> Flat:
  return {n: v for n, v in params.items() if n.startswith(CLASSIFIER)}
