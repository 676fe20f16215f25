"""A model, or an ensemble of models, with the functions for evaluators."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from fedreid_jax import errors
from fedreid_jax.core.types import Flat
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import ensembles, features

# `(variables, images, modalities) -> outputs of the network [M, D]`.
Extractor = Callable[..., Float[np.ndarray, 'M D']]


class Model:
  """Embeddings and class scores of images.

  Attributes:
    config: `config.evaluation`.
  """

  def __init__(
    self,
    config: Any,
    members: Sequence[tuple[Flat, ...]],
    extractor: Callable[[str], Extractor],
    feature: str,
  ):
    """Creates a model from variables.

    Args:
      config: `config.evaluation`.
      members: models whose features are concatenated. Each has variables for
        all images, or variables for each modality.
      extractor: builds the extractor of an output of the network by its name.
      feature: name of the output that is ranked.
    """
    self.config = config
    self._members, self._extractor = members, extractor
    self._feature = feature
    self._latest: tuple[Target, Float[np.ndarray, 'M D']] | None = None

  def embed(
    self,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M D']:
    """Returns the features of images; without modalities all are visible."""
    extract = self._extractor(self._feature)
    found = [
      features.of_each(extract, own, images, modalities)
      for own in self._members
    ]
    return ensembles.join(found, self.config.ensemble_norm)

  def features(self, target: Target) -> Float[np.ndarray, 'M D']:
    """Returns `embed` of all images of a target."""
    # All evaluators of a target need the same features. Targets are tested in
    # turn, so that only the latest features are kept.
    if self._latest is None or self._latest[0] is not target:
      own = target.images
      self._latest = target, self.embed(own.images(), own.modalities)
    return self._latest[1]

  def logits(
    self,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M C']:
    """Returns the class scores of images.

    Raises:
      ConfigError: for an ensemble of concatenated features.
    """
    if len(self._members) > 1:
      raise errors.ConfigError(
        'concatenated features have no classifier',
        'evaluation.ensemble',
        "classify with 'average'",
      )
    extract = self._extractor('logits')
    return features.of_each(extract, self._members[0], images, modalities)
