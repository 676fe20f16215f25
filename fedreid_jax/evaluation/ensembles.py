"""Ensembles of models that were trained separately.

Wu & Gong, Decentralised learning from independent multi-domain labels for
person re-identification, AAAI 2021, table 3: the concatenated features of all
models, `f(x) = [f_1(x), ..., f_N(x)]`, or one model with the mean of their
parameters and running statistics, `w = (1/N) sum_k w_k`. The paper does not
mention a scale of the features. Here the features of each model have unit
length, unless `evaluation.ensemble_norm` is off. The mean of running moments
differs from the moments of the mean model; with
`evaluation.batch_stats='source'` or 'modality' the moments are re-estimated on
the images of all clients.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedreid_jax import errors
from fedreid_jax.core.types import Flat
from fedreid_jax.losses import similarity


def make(
  models: dict[str, Flat], kinds: Sequence[str]
) -> dict[str, list[Flat]]:
  """Returns the members of each ensemble of the clients' models.

  Args:
    models: variables by name; those of clients are 'client:NAME'.
    kinds: 'concat', with all clients' models as members, or 'average', with
      their mean as the only member.

  Raises:
    ConfigError: for fewer than two models of clients.
  """
  if not kinds:
    return {}
  members = [m for name, m in models.items() if name.startswith('client:')]
  if len(members) < 2:
    raise errors.ConfigError(
      f'an ensemble of the models of {errors.counted(len(members), "client")}',
      'evaluation.ensemble',
      'use a run of several clients without shared parameters',
    )
  every = {'concat': members, 'average': [average(members)]}
  return {kind: every[kind] for kind in kinds}


def average(models: Sequence[Flat]) -> Flat:
  """Returns the mean of every leaf, running statistics included."""
  return {
    name: np.mean([np.asarray(m[name]) for m in models], axis=0)
    for name in models[0]
  }


def join(
  features: Sequence[Float[np.ndarray, 'M _']], norm: bool
) -> Float[np.ndarray, 'M _']:
  """Concatenates the features of several models.

  Args:
    features: float32 `[M, D]` of each model; features of a single model are
      unchanged.
    norm: whether to scale the features of each model to unit length; rows of
      zeros are unchanged.

  Returns:
    float32 `[M, N D]`.
  """
  if len(features) == 1:
    return features[0]
  # With unit length no model outweighs the others in the distances.
  if norm:
    features = [np.asarray(similarity.unit(jnp.asarray(x))) for x in features]
  return np.concatenate(features, axis=1)
