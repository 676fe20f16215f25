"""Common parts of `search` and `serve`: the gallery and its search."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from absl import flags

from fedreid_jax import errors
from fedreid_jax.apps.deploy.commands import embedding_flags, model_flags
from fedreid_jax.cli import run
from fedreid_jax.data.datasets.records import MODALITIES

if TYPE_CHECKING:
  from fedreid_jax.apps.deploy.image_search import Apart
  from fedreid_jax.apps.deploy.vectors import Folder, Vectors
  from fedreid_jax.evaluation.index import Gallery
  from fedreid_jax.evaluation.strangers import Calibration
  from fedreid_jax.training.snapshot import Snapshot

flags.adopt_module_key_flags(embedding_flags)
_GALLERY = flags.DEFINE_string(
  'gallery', None, 'Folder of images, or a .npy file that `embed` wrote.'
)
_K = flags.DEFINE_integer('k', 10, 'Images to find for each query.', 1)
QUERY_MODALITY = flags.DEFINE_enum(
  'query_modality',
  None,
  list(MODALITIES),
  'Modality of the queries; models with modality-specific stages need it.',
)
_BACKEND = flags.DEFINE_string(
  'backend',
  'auto',
  'Search of the vectors: product (matrix products in JAX), faiss (needs '
  'fedreid_jax[search]), or auto: faiss for large galleries if installed. '
  'Both are exact.',
)
_INDEX = flags.DEFINE_string(
  'index',
  'exact',
  'exact, or ivfpq: an approximate index of FAISS, which is built at the first '
  'search and kept beside the .npy file.',
)
_STRANGERS = flags.DEFINE_string(
  'strangers',
  None,
  'File of `evaluate --strangers`: print for each image how many strangers are '
  'as near.',
)

_APART = flags.DEFINE_float(
  'apart',
  None,
  'Seconds: leave out an image of a video if a nearer one is within so many.',
  0,
)

METHODS = {
  'product': 'exact matrix products in JAX',
  'faiss': 'exact search by FAISS',
}
APPROXIMATE = 'approximate search by FAISS ({kind}), finds {recall}'


class Source(NamedTuple):
  """A gallery that can be read; one of the two fields is None."""

  images: 'Folder | None'  # without vectors
  stored: 'Vectors | None'  # that `embed` wrote


def given() -> str:
  """Returns --gallery, which is required."""
  if not _GALLERY.value:
    raise errors.ConfigError(
      'no gallery', 'command line', 'give --gallery=FOLDER or vectors.npy'
    )
  return _GALLERY.value


def check() -> None:
  """Raises ConfigError, naming the flag, if flags do not allow a search."""
  given()
  model_flags.check()
  from fedreid_jax.evaluation import approximate, index

  index.check_backend(_BACKEND.value)
  approximate.check(_INDEX.value)


def neighbours() -> int:
  """The number of images to find for each query."""
  return _K.value


def find() -> Source:
  """Opens the vectors of the gallery, or lists its images."""
  from fedreid_jax.apps.deploy import vectors, video

  path = Path(given()).expanduser()
  if path.suffix == '.npy' and not path.is_dir():
    return Source(None, vectors.read(path))
  if video.is_video(path.name) and path.is_file():
    raise errors.ConfigError(
      f'{path} is a video',
      '--gallery',
      'give the .npy file that `fedreid embed --images=FILE` writes',
    )
  return Source(embedding_flags.folder(given(), '--gallery'), None)


def check_model(source: Source, model: 'Snapshot') -> None:
  """Refuses a model that does not fit a gallery.

  Raises:
    IntegrityError: for vectors of another model.
    ConfigError: for a modality that is missing or not that of the vectors.
  """
  from fedreid_jax.apps.deploy import vectors

  if source.stored is None:
    embedding_flags.modality(model)
    return
  vectors.check_model(source.stored, model, given())
  kind = source.stored.described['modality']
  own = None if kind is None else MODALITIES[kind]
  wanted = run.FLAGS.modality
  if wanted not in (None, own):
    raise errors.ConfigError(
      f'the vectors are of {own or "images without a modality"}, not {wanted}',
      '--modality',
      'leave the flag out: the vectors have their modality',
    )


def metric(source: Source, model: 'Snapshot') -> str:
  """The distance of a search: that of the vectors, or of the run."""
  if source.stored is not None:
    return source.stored.described['metric']
  return model.config.evaluation.metric


def embedded(source: Source, model: 'Snapshot') -> 'Vectors':
  """Opens the vectors of a gallery, and embeds it if it has none."""
  if source.stored is not None:
    return source.stored
  assert source.images is not None
  # The file is deleted here but stays mapped into memory, so that nothing
  # remains when the process ends.
  with tempfile.TemporaryDirectory() as scratch:
    return embedding_flags.write(
      model, source.images, Path(scratch, 'vectors.npy')
    )


def opened(source: Source, stored: 'Vectors') -> 'Gallery':
  """Returns vectors as a gallery, labelled with their rows.

  An approximate index of a `source` of stored vectors is kept beside them.
  """
  from fedreid_jax.evaluation.index import Gallery

  rows, metric, index = stored.rows, stored.described['metric'], None
  if _INDEX.value != 'exact':
    from fedreid_jax.apps.deploy import vector_index

    path = Path(given()).expanduser() if source.stored else None
    print(f'index: {_INDEX.value} of {len(rows):,} vectors', flush=True)
    index = vector_index.opened(path, rows, metric, _INDEX.value)
  return Gallery(
    rows,
    np.arange(len(rows)),
    metric=metric,
    backend=_BACKEND.value,
    index=index,
  )


def check_tracklets() -> None:
  """Refuses flags whose files are of images, not of tracklets."""
  for flag in (_INDEX, _STRANGERS):
    if flag.value != flag.default:
      raise errors.ConfigError(
        f'--{flag.name} is for images',
        '--tracklets',
        'leave one of the two flags out',
      )


def strangers(model: 'Snapshot', metric: str) -> 'Calibration | None':
  """Reads --strangers for a model and a distance, None without the flag.

  Raises:
    DataError: when there is no such file.
    IntegrityError: for a file of other models or another distance.
  """
  if not _STRANGERS.value:
    return None
  from fedreid_jax.training import calibration

  path = Path(_STRANGERS.value).expanduser()
  return calibration.read(path, model.digest, metric)


def apart(source: Source) -> 'Apart':
  """Reads --apart.

  Raises:
    ConfigError: for a gallery without images of videos.
  """
  from fedreid_jax.apps.deploy import image_search

  if _APART.value is None:
    return image_search.TOGETHER
  if source.stored is None or not source.stored.times:
    raise errors.ConfigError(
      'the gallery has no times',
      '--apart',
      'give the .npy file that `fedreid embed --images=VIDEO` writes',
    )
  return image_search.Apart(_APART.value, source.stored.times)


def about(
  model: 'Snapshot',
  stored: 'Vectors',
  gallery: 'Gallery',
  known: 'Calibration | None' = None,
  unit: str = 'image',
) -> list[tuple[str, str]]:
  """Prints the facts of a search, and returns them with the model."""
  images = errors.counted(len(gallery), unit)
  method = METHODS[gallery.backend]
  if gallery.index:
    recall = gallery.index.recall
    method = APPROXIMATE.format(kind=_INDEX.value, recall=recall)
  # Weights have one name, which is their title.
  of_run = '' if model_flags.weights() else f', of {model_flags.source()}'
  found = [
    ('model', f'{model.title}{of_run}'),
    ('gallery', f'{images} of {stored.folder.root}'),
    ('distance', gallery.metric),
    ('search', method),
  ]
  if _APART.value is not None:
    found.append(('apart', f'{_APART.value:g} seconds in a video'))
  if known:
    from fedreid_jax.training import calibration

    found.append(('strangers', calibration.describe(known)))
  for name, value in found[1:]:
    print(f'{name}: {value}')
  return found
