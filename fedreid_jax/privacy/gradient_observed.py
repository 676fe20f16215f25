"""The gradient of the identity loss that an attacker observes.

It is that of the cross-entropy with respect to the parameters that clients
share. Batch normalisation has its running moments, as the client that sends
gradients of one image must. Where the run shares no classifier, a random one
takes its place, and its own gradient is not observed.
"""

import jax
import jax.numpy as jnp

from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.losses import identity
from fedreid_jax.privacy.gradient_search import Gradient
from fedreid_jax.training.loaded_run import LoadedRun

CLASSIFIER = 'params/classifier/'


def of(run: LoadedRun, persons: int) -> Gradient:
  """Returns `(pixels, labels) -> gradient` of the shared parameters.

  Args:
    run: the attacked model.
    persons: number of the client's persons.
  """
  head = _head(run, persons)
  return lambda x, y: _gradient(run, head, x, y)


def _head(run: LoadedRun, persons: int) -> Array | None:
  """Returns a random classifier `[D, C]` where the run shares none."""
  kernel = run.variables.get(f'{CLASSIFIER}kernel')
  if kernel is not None and kernel.shape[-1] >= persons:
    return None
  outputs = jax.eval_shape(
    lambda: run.model.apply(
      run.variables, jnp.zeros((1, *run.federation.image_shape)), train=False
    )[0]
  )
  size = outputs.embedding.shape[1]
  return jax.random.normal(jax.random.key(0), (size, persons)) / size**0.5


def _gradient(run: LoadedRun, head: Array | None, x: Array, y: Array) -> Flat:
  """Returns the gradient of the cross-entropy of shared parameters."""
  params, moments = param_filter.trainable(run.variables)
  mean, std = (
    jnp.asarray(v, jnp.float32)
    for v in (run.federation.mean, run.federation.std)
  )
  fixed = {} if head is None else _classifier(params)
  learned = {n: v for n, v in params.items() if n not in fixed}

  def loss(learned: Flat) -> Array:
    outputs, _ = run.model.apply(
      {**moments, **fixed, **learned}, (x - mean) / std, train=False
    )
    scores = outputs.logits if head is None else outputs.embedding @ head
    return identity.cross_entropy(scores, y, jnp.ones(len(y), bool))

  return jax.grad(loss)(learned)


def _classifier(params: Flat) -> Flat:
  return {n: v for n, v in params.items() if n.startswith(CLASSIFIER)}
