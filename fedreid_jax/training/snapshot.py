"""Snapshots: models of a saved run without its images, or of weights."""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load as config_lib
from fedreid_jax.config import parsing
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import plugins, types
from fedreid_jax.data import decoder
from fedreid_jax.data import load as data_lib
from fedreid_jax.evaluation import explanation, features
from fedreid_jax.training import named_models, weights_model, whole_network
from fedreid_jax.training.files import run_files
from fedreid_jax.training.processes import process

# Fields on which features depend beside those of `model`, and which may differ
# between models of equal weights.
FEATURE_FIELDS = (
  *('data.height', 'data.width', 'data.channels', 'data.invert'),
  *('data.resample', 'data.fast_decode', 'data.mean', 'data.std'),
  *('evaluation.feature', 'evaluation.flip'),
)
Paths = Sequence[str | os.PathLike[str]]
Images = np.ndarray | Paths


@dataclasses.dataclass(frozen=True, eq=False)
class Snapshot:
  """A trained model, without the images it was trained and tested on.

  >>> import fedreid_jax as fr
  >>> model = fr.load('runs/first')
  >>> model.name, model.step, model.config.data.height
  ('global', 5, 32)
  >>> model.embed(['a.jpg', 'b.jpg']).shape
  (2, 32)

  Attributes:
    config: of the run.
    variables: of the model, `{'params/...': array}`; leaves that were never
      sent to the server are initial values, on which no embedding depends.
    step: rounds of training.
    name: of the model: 'global', 'cluster:GROUP', 'client:NAME', or
      'weights:NAME' without a run.
    digest: SHA-256 of the weights and of the fields that its embeddings depend
      on; models of equal digests have equal embeddings.
    notes: sentences about what a file of weights does not say.
  """

  config: Config
  variables: types.Flat
  step: int
  name: str
  _extractor: Callable[[int], Callable[..., np.ndarray]]
  digest: str = ''
  _explainer: Callable[[], explanation.Explainer] | None = None
  notes: tuple[str, ...] = ()

  @property
  def title(self) -> str:
    """The model in words."""
    return title(self.config.name, self.name, self.step)

  @property
  def has_modalities(self) -> bool:
    """Whether visible and infrared images have parts of the network each."""
    return self.config.model.modality_specific_stages > 0

  def embed(
    self, images: Images, modalities: Any = None, batch: int | None = None
  ) -> np.ndarray:
    """Returns the features that the evaluation of the run ranks.

    The configuration determines the decoding of files, the feature and the use
    of mirror images. Running statistics of batch normalisation are used, even
    if the run is evaluated with statistics of its sources or of a gallery.

    >>> import numpy as np
    >>> import fedreid_jax as fr
    >>> model = fr.load('runs/first')
    >>> vectors = model.embed(np.zeros((3, 32, 16, 3), np.uint8))
    >>> vectors.shape, vectors.dtype
    ((3, 32), dtype('float32'))

    Args:
      images: paths of image files of any size, or pixels of the size of the
        configuration, uint8 `[n, H, W, ch]`.
      modalities: of the images, 0 visible and 1 infrared, `[n]`; without them
        all are visible.
      batch: images of a step; with the default, `evaluation.batch`, features
        have the same bits as in the evaluation.

    Returns:
      float32 `[n, D]`.

    Raises:
      DataError: for no images, files that cannot be read, pixels of another
        shape, or modalities that do not fit.
      ConfigError: for a batch below 1.
    """
    # Arrays of other libraries have a dtype, and lists of paths have none.
    if hasattr(images, 'dtype'):
      images = np.asarray(images)
    if isinstance(images, np.ndarray):
      kinds, batch = self._check(images, modalities, batch)
      self._check_pixels(images)
      return self._extractor(batch)(self.variables, images, kinds)
    parts = self.embed_files(images, modalities, batch)
    return np.concatenate([vectors for _, vectors in parts])

  def embed_files(
    self,
    paths: Paths,
    modalities: Any = None,
    batch: int | None = None,
    skip: decoder.Skip | None = None,
  ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields the features of `embed` for files, a batch at a time.

    The memory does not grow with the number of files.

    >>> import fedreid_jax as fr
    >>> model = fr.load('runs/first')
    >>> paths = ['a.jpg', 'b.jpg', 'c.jpg']
    >>> for rows, vectors in model.embed_files(paths, batch=2):
    ...   print(rows, vectors.shape)
    [0 1] (2, 32)
    [2] (1, 32)

    Args:
      paths: of image files of any size.
      modalities: as for `embed`.
      batch: as for `embed`.
      skip: called with the position of a file that cannot be read, and with
        the reason; the file is left out.

    Yields:
      (positions in `paths`, int64 `[m]`, features, float32 `[m, D]`).

    Raises:
      DataError: as for `embed`; with `skip`, not for files that cannot be read.
      ConfigError: for a batch below 1.
    """
    kinds, batch = self._check(paths, modalities, batch)
    extract = self._extractor(batch)
    how = self.config.data.decoder()
    for rows, pixels in decoder.read(paths, how, batch, skip):
      if len(rows):
        yield rows, extract(self.variables, pixels, kinds[rows])

  def explain(
    self, images: Images, modalities: Any = None
  ) -> explanation.Controlled:
    """Says which positions carry the similarity of two images.

    A third image, of another person, is for the control. `fedreid_jax.
    evaluation.explanation` has the definitions.

    >>> import fedreid_jax as fr
    >>> model = fr.load('runs/first')
    >>> found = model.explain(['a.jpg', 'b.jpg', 'c.jpg'])
    >>> found.pair.way, found.pair.query.parts.shape
    ('exact', (8, 4))

    Args:
      images: the query, the image that it matches and one of a stranger, as
        for `embed`.
      modalities: as for `embed`, `[3]`.

    Raises:
      DataError: as for `embed`, or for another number of images.
      ConfigError: for a model that has vectors only, and no network.
    """
    if self._explainer is None:
      raise errors.ConfigError(
        'this model has vectors only, and no maps that explain them',
        'explain',
        'give a model of a run',
      )
    if len(images) != 3:
      raise errors.DataError(
        errors.counted(len(images), 'image'),
        'explain',
        'give a query, an image that it matches and one of a stranger',
      )
    if hasattr(images, 'dtype'):
      images = np.asarray(images)
    if isinstance(images, np.ndarray):
      self._check_pixels(images)
      pixels = images
    else:
      how = self.config.data.decoder()
      ((_, pixels),) = decoder.read(images, how, len(images))
    kinds = _modalities(modalities, len(images))
    return explanation.controlled(
      self._explainer(), self.variables, pixels, kinds
    )

  def _check(
    self, images: Images, modalities: Any, batch: int | None
  ) -> tuple[np.ndarray, int]:
    """Returns (modalities int32 `[n]`, images of a step), or refuses them."""
    if isinstance(images, str | os.PathLike):
      raise errors.DataError('one path', str(images), 'give a list of paths')
    if not len(images):
      raise errors.DataError('no images', 'embed', 'give one or more')
    kinds = _modalities(modalities, len(images))
    batch = int(self.config.evaluation.batch if batch is None else batch)
    if batch < 1:
      raise errors.ConfigError(f'batch {batch}', 'embed', 'use 1 or more')
    return kinds, batch

  def _check_pixels(self, images: np.ndarray) -> None:
    shape = data_lib.without_images(self.config.data).image_shape
    if images.dtype != np.uint8 or images.shape[1:] != shape:
      raise errors.DataError(
        f'pixels of shape {images.shape} and type {images.dtype}',
        'embed',
        f'give uint8 [n, {", ".join(map(str, shape))}], or paths of files',
      )


def _modalities(values: Any, size: int) -> np.ndarray:
  if values is None:
    return np.zeros(size, np.int32)
  values = np.asarray(values)
  if values.shape != (size,) or not np.isin(values, (0, 1)).all():
    raise errors.DataError(
      f'modalities of shape {values.shape}',
      'modalities',
      f'give {size} numbers, 0 visible and 1 infrared',
    )
  return values.astype(np.int32)


def title(recipe: str, name: str, step: int) -> str:
  """A model in words, 'dfh, global, round 5' for example."""
  if name.startswith(weights_model.PREFIX):
    return f'weights {name.removeprefix(weights_model.PREFIX)}'
  return f'{recipe}, {name}, round {step}'


def load(
  workdir: str | os.PathLike[str],
  checkpoint: str | int = 'latest',
  model: str = '',
  overrides: Mapping[str, Any] | None = None,
) -> Snapshot:
  """Loads a model of a run, or weights without a run; no images are needed.

  >>> import fedreid_jax as fr
  >>> fr.load('runs/first', checkpoint='best').name
  'global'
  >>> fr.load('weights:convnet-synthetic').embed(['a.jpg']).shape
  (1, 128)

  Args:
    workdir: of a run; or 'weights:NAME' with the name of published weights or
      the path of a `.safetensors` file.
    checkpoint: 'latest', 'best', or the number of a round that was saved.
    model: its name, 'cluster:GROUP' or 'client:NAME' for example. By default
      the model of the server, or the first where there are several.
    overrides: new values of fields of the configuration by their full names. A
      file of another program needs the size of images: `{'data.height': 256,
      'data.width': 128}`.

  Returns:
    The model, on the first device.

  Raises:
    IntegrityError: when there is no such run, checkpoint or file, or it is
      damaged.
    ConfigError: for a model that the run does not have, an unknown name of
      weights, or a field that cannot be changed.
  """
  flat = parsing.flatten(dict(overrides or {}))
  changes = [f'{name}={value!r}' for name, value in flat.items()]
  return load_changed(os.fspath(workdir), str(checkpoint), model, changes)


def load_changed(
  workdir: str, checkpoint: str, model: str, changes: Sequence[str]
) -> Snapshot:
  """Loads as `load` does, with KEY=VALUE pairs of fields to change."""
  process.use_cache()
  if workdir.startswith(weights_model.PREFIX):
    if checkpoint != 'latest' or model:
      raise errors.ConfigError(
        f'weights are one model, without {checkpoint or model!r}',
        workdir,
        'give neither a checkpoint nor the name of a model',
      )
    found = weights_model.load(
      workdir.removeprefix(weights_model.PREFIX), changes
    )
    return _made(
      found.config, found.network, found.leaves, 0, found.name, found.notes
    )
  folder = Path(workdir).expanduser().absolute()
  config = config_lib.load_saved(folder, changes)
  with process.orbax_muted():
    saved = run_files.checkpoints_of(folder)
    step, models, _, _ = named_models.restore(saved, checkpoint)
  name = named_models.choose(models, model)
  network = named_models.network(
    whole_network.pinned(config, folder),
    data_lib.without_images(config.data),
    models[name],
  )
  return _made(config, network, models[name], step, name)


def _made(
  config: Config,
  network: named_models.Network,
  leaves: types.Flat,
  step: int,
  name: str,
  notes: tuple[str, ...] = (),
) -> Snapshot:
  view = network.transforms.test
  ranked = {
    'flip': config.evaluation.flip,
    'feature': config.evaluation.feature,
  }
  extractor = functools.partial(
    features.make_extractor,
    network.model,
    view,
    # Without a mesh, on one device: programs over several devices that two
    # threads start at once may wait for each other forever.
    **ranked,
  )
  explainer = functools.partial(explanation.make, network.model, view, **ranked)
  return Snapshot(
    config=config,
    variables={**network.variables, **leaves},
    step=step,
    name=name,
    # One jitted function for each batch, which compiles once.
    _extractor=functools.cache(lambda batch: extractor(batch=batch)),
    digest=digest_of(config, leaves),
    _explainer=functools.cache(explainer),
    notes=notes,
  )


def digest_of(config: Config, leaves: types.Flat) -> str:
  """Returns the SHA-256 of a model: leaves of a checkpoint, and fields.

  Vectors of different models cannot be compared. Fields of `model` that have
  their defaults are left out, so that a new one does not change the digest.
  """
  every = parsing.flatten(config)
  network = ('model.', f'{plugins.group_of(config.model.name)}.')
  fields = {name: every[name] for name in FEATURE_FIELDS}
  fields |= {
    name: value
    for name, value in parsing.changed(config).items()
    if name.startswith(network) and name != 'model.pretrained'
  }
  found = hashlib.sha256(json.dumps(fields).encode())
  for name in sorted(leaves):
    leaf = np.ascontiguousarray(leaves[name])
    found.update(f'{name} {leaf.dtype} {leaf.shape}'.encode())
    found.update(leaf.tobytes())
  return found.hexdigest()
