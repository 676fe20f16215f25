"""Batch-normalisation moments of the gallery of a target, without labels.

The moments of a trained model are those of its training images. Two values of
`evaluation.batch_stats` replace them by moments of the images that are searched
at the test, which need no identity of a person:

  target  moments of all gallery images, as in AdaBN (Li et al., "Revisiting
          batch normalization for practical domain adaptation", 2016). The
          images are divided at random into parts of `moments_batch` images;
          every layer normalises a part by the moments of the part, and the
          moments of the parts are merged (`method.batch_stats`). AdaBN
          measures all images at once, layer by layer; both agree for one part.
  stream  gallery images arrive in the order of the target's images, in parts
          of about `moments_batch`. With the moments s of a model, those b of a
          part and the momentum m, s <- (1 - m) s + m b before the images of
          the part are embedded. s begins with the running moments.

With parts of n images the first step of a stream is the estimate of Schneider
et al. ("Improving robustness against common corruptions by covariate shift
adaptation", NeurIPS 2020), N / (N + n) s + n / (N + n) b, for a prior of
N = n (1 - m) / m images of the sources; later steps are exponential averages.
As there, means and variances are averaged apart, and the difference of the two
means adds nothing to the variance.

Both use gallery images only. Queries are embedded with the moments of all
gallery images, or those at the end of the stream. Images have the transform of
a test and no augmentation. A layer that fewer than two images reach, as that of
a modality without gallery images, keeps its running moments.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from fedreid_jax.core import types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation.options import Evaluation
from fedreid_jax.method import batch_stats
from fedreid_jax.method.batch_stats import BatchMoments, Layers

RULES = ('target', 'stream')
SEED = 0  # of the division into parts

# `(variables, images, modalities, valid) -> moments of the valid images`.
Measure = Callable[..., Layers]


class Tested(NamedTuple):
  """Variables for the images of a target."""

  models: tuple[Flat, ...]  # that of the last part also embeds other images
  model_of: Int[np.ndarray, ' M']  # index in `models` of each image


def make_measure(
  model: types.Model,
  view: Callable[[UInt8[Array, 'M H W ch']], Float[Array, 'M H W ch']],
) -> Measure:
  """Builds `(variables, images, modalities, valid) -> Layers`.

  `view` is the transform of test images uint8 `[M, H, W, ch]`. Of these only
  those with `valid`, bool `[M]`, are measured. One device is used, so that the
  moments have the same bits on any number of devices.
  """

  @jax.jit
  def measure(
    variables: Flat,
    images: UInt8[Array, 'M H W ch'],
    modalities: Int[Array, ' M'],
    valid: Bool[Array, ' M'],
  ) -> Layers:
    return model.measure(
      variables, view(images), mask=valid, modalities=modalities
    )[1]

  return measure


def gallery_of(target: Target) -> Int[np.ndarray, ' P']:
  """Rows of the images that are in the gallery of any trial, in order."""
  return np.unique(np.concatenate([one.gallery for one in target.trials]))


def adapt(
  measure: Measure, variables: Flat, target: Target, config: Evaluation
) -> Tested:
  """Re-estimates the moments of a model on the gallery of a target.

  Args:
    measure: of `make_measure`.
    variables: of the model; its parameters do not change.
    config: `config.evaluation`, whose `batch_stats` is one of `RULES`.
  """
  variables = jax.device_get(variables)
  rows, size = gallery_of(target), config.moments_batch
  if config.batch_stats == 'target':
    # Images in order are of few persons, so that a part would not be like the
    # whole gallery.
    rows = np.random.default_rng(SEED).permutation(rows)
  pixels = target.images.images()
  # Parts of nearly equal sizes: the last part has no moments of few images.
  parts = np.array_split(rows, -(-len(rows) // size))
  layers = [
    _measured(measure, variables, target, pixels, part, size) for part in parts
  ]
  num_images = len(target.images.identities)
  if config.batch_stats == 'target':
    found = batch_stats.install(variables, batch_stats.pool(layers))
    return Tested((jax.device_get(found),), np.zeros(num_images, np.int64))
  models = []
  for one in layers:
    mixed = _mixed(variables, one, config.moments_momentum)
    variables = jax.device_get(batch_stats.install(variables, mixed))
    models.append(variables)
  # Queries that no trial has in its gallery come after all parts.
  model_of = np.full(num_images, len(models) - 1)
  for number, part in enumerate(parts):
    model_of[part] = number
  return Tested(tuple(models), model_of)


def _measured(
  measure: Measure,
  variables: Flat,
  target: Target,
  pixels: UInt8[np.ndarray, 'M H W ch'],
  rows: Int[np.ndarray, ' rows'],
  size: int,
) -> Layers:
  # Parts are padded to one size, so that one program is compiled.
  missing = size - len(rows)
  images = np.pad(pixels[rows], [(0, missing), (0, 0), (0, 0), (0, 0)])
  kinds = np.pad(target.images.modalities[rows], (0, missing))
  return measure(variables, images, kinds, np.arange(size) < len(rows))


def _mixed(variables: Flat, layers: Layers, momentum: float) -> Layers:
  """Moments of the model with those of a part, of the weight `momentum`."""
  return {
    layer: BatchMoments(
      found.count,
      *(
        (1 - momentum) * variables[f'batch_stats/{layer}/{kind}']
        + momentum * getattr(found, kind)
        for kind in ('mean', 'var')
      ),
    )
    for layer, found in layers.items()
  }
