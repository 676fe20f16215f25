"""Features of images by a model, or by an ensemble of models.

The models of an ensemble were trained separately (Wu & Gong, Decentralised
learning from independent multi-domain labels for person re-identification, AAAI
2021, table 3): the concatenated features of all models,
`f(x) = [f_1(x), ..., f_N(x)]`, or one model with the mean of their parameters
and running statistics, `w = (1/N) sum_k w_k`. The paper does not mention a
scale of the features. Here the features of each model have unit length, unless
`evaluation.ensemble_norm` is off. The mean of running moments differs from the
moments of the mean model; with `evaluation.batch_stats='source'` or 'modality'
the moments are re-estimated on the images of all clients, and with 'target' or
'stream' on the gallery of each target.
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int, Num, UInt8

from fedreid_jax import errors
from fedreid_jax.core import model_names, types
from fedreid_jax.core.types import Array, Flat
from fedreid_jax.data import tracklets
from fedreid_jax.data.federation import Target
from fedreid_jax.evaluation import camera_norm
from fedreid_jax.evaluation.options import Evaluation
from fedreid_jax.losses import metric
from fedreid_jax.round import placement

# `(variables, images, modalities) -> outputs of the network [M, D]`.
Extractor = Callable[..., Float[np.ndarray, 'M D']]


def make_embedding(
  model: types.Model,
  view: Callable[[Num[Array, 'M H W ch']], Float[Array, 'M H W ch']],
  *,
  flip: bool,
  feature: str,
) -> Callable[..., Float[Array, 'M D']]:
  """Builds the function from images to features as a pure function.

  It is `(variables, images [M, H, W, ch], modalities [M] or None) -> float32
  [M, D]`, on one device; `view` normalises images, uint8 unless it expects
  other ones, and without modalities all images are visible.
  `flip` averages the features of an image and its mirror image. `feature` is
  'embedding' after the neck, 'feature' before it, or 'logits'.
  """

  def embedding(
    variables: Flat,
    images: Num[Array, 'M H W ch'],
    modalities: Int[Array, ' M'] | None = None,
  ) -> Float[Array, 'M D']:
    def embed(x):
      outputs, _ = model.apply(
        variables, view(x), train=False, modalities=modalities
      )
      return getattr(outputs, feature)

    if not flip:
      return embed(images)
    return 0.5 * (embed(images) + embed(jnp.flip(images, 2)))

  return embedding


def make_extractor(
  model: types.Model,
  view: Callable[[UInt8[Array, 'M H W ch']], Float[Array, 'M H W ch']],
  mesh: Mesh | None = None,
  *,
  batch: int,
  flip: bool,
  feature: str,
) -> Callable[..., Float[np.ndarray, 'M D']]:
  """Builds the function of `make_embedding` for arrays on the host.

  It runs on the devices of a mesh, by default on one, with `batch` images at a
  time on each of them. The other arguments are those of `make_embedding`.
  """
  mesh = mesh or placement.make_mesh(1)
  axis = mesh.axis_names[0]
  split, whole = NamedSharding(mesh, P(axis)), NamedSharding(mesh, P())

  one = make_embedding(model, view, flip=flip, feature=feature)
  extract = jax.jit(
    jax.shard_map(
      one,
      mesh=mesh,
      in_specs=(P(), P(axis), P(axis)),
      out_specs=P(axis),
      check_vma=False,
    ),
    out_shardings=whole,
  )
  chunk = batch * mesh.devices.size

  def put(part: np.ndarray):
    size = len(part)
    # Every device always gets `batch` images, so the features have the same
    # bits on any number of devices, and one program is compiled.
    part = np.pad(part, [(0, chunk - size)] + [(0, 0)] * (part.ndim - 1))
    return jax.make_array_from_callback(
      part.shape, split, lambda index: part[index]
    )

  def run(
    variables: Flat,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M D']:
    if modalities is None:
      modalities = np.zeros(len(images), np.int32)
    parts = []
    for first in range(0, len(images), chunk):
      part = np.asarray(images[first : first + chunk])
      kinds = modalities[first : first + chunk]
      parts.append((extract(variables, put(part), put(kinds)), len(part)))
    return np.concatenate([np.asarray(f)[:size] for f, size in parts])

  return run


def of_each(
  extract: Callable[..., Float[np.ndarray, 'M D']],
  models: Sequence[Flat],
  images: UInt8[np.ndarray, 'M H W ch'],
  modalities: Int[np.ndarray, ' M'] | None = None,
  model_of: Int[np.ndarray, ' M'] | None = None,
) -> Float[np.ndarray, 'M D']:
  """Features of images by the model of each image.

  `models` has variables for all images, or one for each of modality 0 (visible)
  and 1 (infrared). Without modalities all images are visible. With `model_of`,
  an index for each image, `models` are in its order and of all modalities.
  """
  if model_of is None:
    model_of = modalities
  if len(models) == 1 or model_of is None:
    return extract(models[0], images, modalities)
  rows = [np.flatnonzero(model_of == kind) for kind in range(len(models))]
  found = [
    extract(
      variables,
      images[own],
      None if modalities is None else modalities[own],
    )
    for variables, own in zip(models, rows, strict=True)
    if len(own)
  ]
  # The inverse permutation restores the order of the images.
  return np.concatenate(found)[np.argsort(np.concatenate(rows))]


def ensembles(
  models: Mapping[str, Flat], kinds: Sequence[str]
) -> dict[str, list[Flat]]:
  """The members of each kind of ensemble of the clients' models, by kind.

  Of `models` those named 'client:NAME' are used. All of them are members of
  'concat', and their mean is the only member of 'average'.

  Raises:
    ConfigError: for fewer than two models of clients.
  """
  if not kinds:
    return {}
  members = [m for name, m in models.items() if model_names.client_of(name)]
  if len(members) < 2:
    raise errors.ConfigError(
      f'an ensemble of the models of {errors.counted(len(members), "client")}',
      'evaluation.ensemble',
      'use a run of several clients without shared parameters',
    )
  every = {'concat': members, 'average': [average(members)]}
  return {kind: every[kind] for kind in kinds}


def average(models: Sequence[Flat]) -> Flat:
  """Mean of every leaf, running statistics included."""
  return {
    name: np.mean([np.asarray(m[name]) for m in models], axis=0)
    for name in models[0]
  }


def join(
  features: Sequence[Float[np.ndarray, 'M _']], norm: bool
) -> Float[np.ndarray, 'M _']:
  """Concatenates the features `[M, D]` of N models to `[M, N D]`.

  With `norm` the features of each model are scaled to unit length; rows of
  zeros, and the features of a single model, are unchanged.
  """
  if len(features) == 1:
    return features[0]
  # With unit length no model outweighs the others in the distances.
  if norm:
    features = [np.asarray(metric.unit(jnp.asarray(x))) for x in features]
  return np.concatenate(features, axis=1)


class Model:
  """Embeddings and class scores of images; `config` is `config.evaluation`."""

  def __init__(
    self,
    config: Evaluation,
    members: Sequence[tuple[Flat, ...]],
    extractor: Callable[[str], Extractor],
    feature: str,
    model_of: Int[np.ndarray, ' M'] | None = None,
  ):
    """Creates a model from variables.

    Each of `members`, whose features are concatenated, has variables for all
    images, or variables for each modality. `extractor` builds the extractor of
    an output of the network by its name; the output `feature` is ranked. With
    `model_of`, each member has several variables, and each image of the only
    target those of its index; other images have the last ones.
    """
    self.config = config
    self._members, self._extractor = members, extractor
    self._model_of = model_of
    self._feature = feature
    self._latest: tuple[Target, Float[np.ndarray, 'M D']] | None = None

  def embed(
    self,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M D']:
    """Features of images, not by camera; without modalities all are visible."""
    return self._joined(images, modalities)

  def features(self, target: Target) -> Float[np.ndarray, 'M D']:
    """Features of all images of a target, by `evaluation.camera_norm`.

    Frames have the mean of their tracklet.
    """
    # All evaluators of a target need the same features. Targets are tested in
    # turn, so that only the latest features are kept.
    if self._latest is None or self._latest[0] is not target:
      own, rule = target.images, self.config.camera_norm
      found = self._joined(own.images(), own.modalities, self._model_of)
      if own.tracklets is not None:
        found = tracklets.pooled(found, own.tracklets)
      if rule:
        found = camera_norm.of_images(found, own, rule)
      self._latest = target, found
    return self._latest[1]

  def _joined(
    self,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None,
    model_of: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M D']:
    members = self._members
    # Images that are not of the target follow all of its images.
    if self._model_of is not None and model_of is None:
      members = [own[-1:] for own in members]
    extract = self._extractor(self._feature)
    found = [
      of_each(extract, own, images, modalities, model_of) for own in members
    ]
    return join(found, self.config.ensemble_norm)

  def logits(
    self,
    images: UInt8[np.ndarray, 'M H W ch'],
    modalities: Int[np.ndarray, ' M'] | None = None,
  ) -> Float[np.ndarray, 'M C']:
    """Class scores of images; raises ConfigError for concatenated features."""
    if len(self._members) > 1:
      raise errors.ConfigError(
        'concatenated features have no classifier',
        'evaluation.ensemble',
        "classify with 'average'",
      )
    extract = self._extractor('logits')
    return of_each(extract, self._members[0], images, modalities)
