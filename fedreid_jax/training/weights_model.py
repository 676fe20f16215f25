"""Models of files of weights, without a run and without training.

A file with a whole card (`model_card`), as published weights and exported files
have it, says its network, its images and what is compared. A file of another
program says its network by its tensors, and its normalisation by its program;
its images have no size, so that a user gives one.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedreid_jax import errors
from fedreid_jax.config import load as config_lib
from fedreid_jax.config import validation
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import programs, trees, types
from fedreid_jax.data import augment
from fedreid_jax.data import load as data_lib
from fedreid_jax.evaluation import features
from fedreid_jax.models import weights
from fedreid_jax.models.weights import pytorch, sources
from fedreid_jax.round import placement
from fedreid_jax.training import build, model_card, named_models

PREFIX = 'weights:'  # begins the name of such a model
_SIZE = ('data.height', 'data.width')


class WeightsModel(NamedTuple):
  """The model of a file.

  Attributes:
    config: of the network and its images; other fields have their defaults.
    name: 'weights:NAME'.
    network: leaves that the file lacks are zero, and no embedding depends on
      them.
    leaves: those of the file.
    about: the card, empty for a file of another program.
    notes: sentences about what the file does not say.
  """

  config: Config
  name: str
  network: named_models.Network
  leaves: types.Flat
  about: dict[str, Any]
  notes: tuple[str, ...]


def load(name: str, changes: Sequence[str] = ()) -> WeightsModel:
  """Loads published weights by their name, or a file by its path.

  Args:
    changes: KEY=VALUE pairs of fields to change, or to add to what a file says.

  Raises:
    ConfigError: for an unknown name, a field that cannot be changed, or a file
      without the size of its images.
    IntegrityError: for a file that is absent, damaged, or does not fit its
      network.
  """
  path = weights.existing(name, '--weights')
  about = weights.card(path)
  if 'model' in about:
    shown = {'name': path.stem} | about
    config, notes = model_card.configuration(shown, path, changes), []
  else:
    config, notes = _of_other_program(path, about, changes)
  data = data_lib.without_images(config.data)
  model = build.network(config, 1, data.image_shape)
  # No embedding depends on the leaves that stay zero, so that no program of
  # initial values is compiled.
  shapes = jax.eval_shape(model.init, jax.random.key(config.seed))
  zeros = {n: np.zeros(x.shape, x.dtype) for n, x in shapes.items()}
  image = data.image_shape[:2]
  loaded, read = weights.load(str(path), zeros, image, whole=True)
  network = named_models.Network(
    model,
    loaded,
    augment.make(config.augment, data.mean, data.std),
    placement.make_mesh(config.execution.devices or None),
  )
  absent = loaded.keys() - {*read}
  _, absent = trees.split(dict.fromkeys(absent, 0), build.CLASSIFIER)
  necks, _ = trees.split(absent, build.NECK)
  if necks and config.evaluation.feature == 'embedding':
    ranked = replace(config.evaluation, feature='feature')
    config = replace(config, evaluation=ranked)
    notes.append('the file has no neck: a vector is the pooled feature')
  if absent:
    _check_whole({*absent}, config, network, path)
  return WeightsModel(
    config,
    PREFIX + name,
    network,
    {leaf: loaded[leaf] for leaf in read},
    about,
    tuple(notes),
  )


def _of_other_program(
  path: Path, about: dict[str, Any], changes: Sequence[str]
) -> tuple[Config, list[str]]:
  """The configuration of a file without a whole card, and notes."""
  key, fields = pytorch.network(path, about)
  given = {pair.partition('=')[0] for pair in changes}
  if missing := [field for field in _SIZE if field not in given]:
    raise errors.ConfigError(
      'the file does not say the size of its images',
      f'{path}: {" and ".join(missing)}',
      'give --set=data.height=256 --set=data.width=128, for example',
    )
  source = sources.SOURCES[key]
  pixels = source.pixels
  if own := about.get('normalisation'):
    pixels = sources.Pixels(tuple(own['mean']), tuple(own['std']))
  saved: dict[str, Any] = {
    'name': path.stem,
    # Photographs: the default, a rendered world, is no fact about the file.
    'data': {'source': 'folder', 'mean': pixels.mean, 'std': pixels.std},
    'evaluation': {'feature': 'feature'},
    'model': {'neck': 'none'},
  }
  for field, value in fields.items():
    group, _, last = field.partition('.')
    saved.setdefault(group, {})[last] = value
  config = config_lib.from_json(saved, changes, str(path))
  shown = {'data.mean': pixels.mean, 'data.std': pixels.std}
  said = f'the file is of {source.title}: {sources.settings(fields | shown)}'
  notes = [f'{said} ({pixels.note})' if pixels.note else said]
  if source.family in sources.STRIDED:
    stride = config.model.last_stride
    notes.append(
      'the file does not say the stride of its last stage: '
      f'model.last_stride={stride}'
    )
  return validation.validate(config), notes + [source.note] * bool(source.note)


def _check_whole(
  absent: set[str], config: Config, network: named_models.Network, path: Path
) -> None:
  """Refuses a file that lacks a leaf on which the embedding depends."""
  embed = features.make_embedding(
    network.model,
    network.transforms.test,
    flip=config.evaluation.flip,
    feature=config.evaluation.feature,
  )
  shape = data_lib.without_images(config.data).image_shape
  images = jax.ShapeDtypeStruct((1, *shape), jnp.uint8)
  kinds = jax.ShapeDtypeStruct((1,), jnp.int32)
  closed = jax.make_jaxpr(embed)(network.variables, images, kinds)
  _, used = programs.without_unused(closed)
  # JAX flattens a dict in the order of its sorted names; the inputs follow.
  names = zip(sorted(network.variables), used, strict=False)
  if needed := [n for n, is_used in names if is_used and n in absent]:
    raise errors.IntegrityError(
      f'the file has no {needed[0]}',
      str(path),
      f'set the fields of the network: {weights.settings(path) or "--set"}',
    )
