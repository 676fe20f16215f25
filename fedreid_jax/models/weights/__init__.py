"""Published weights of backbones, and the format of their files.

A file has the leaves of a backbone, and of the neck behind it if the embedding
needs one. They have the names of this package,
`params/backbone/block0/conv/kernel`, and are float32, or float16, which is read
as float32. A card is in its header: JSON under the key `fedreid_jax` with the
network, its images, the command and the data (`training.model_card`, `zoo`).
Files in the formats of PyTorch's programs are read too (`sources`); a card in
such a file has as its form a family of names, such as `"torchvision"` or
`"timm"`. Names are those of the program then, such as
`layer1.0.downsample.0.weight`; those of a neck, which it does not have, begin
with `neck.`.
"""

import importlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.core import plugins, trees
from fedreid_jax.core.types import Flat
from fedreid_jax.models import backbones
from fedreid_jax.models.options import Model
from fedreid_jax.models.weights import pytorch, sources

SUFFIX = '.safetensors'
OWN = 'fedreid_jax'  # the form of all other files than those of PyTorch
HEADER = 'fedreid_jax'
# Source in cards that were written before synthetic worlds had versions.
FIRST_WORLD = 'synthetic_v1'
BACKBONE = r'(params|batch_stats)/backbone/'
NECK = r'(params|batch_stats)/neck/|neck\.'  # with PyTorch's names as well
# Fields of `model` that say how weights are trained, and not what they are.
TRAINING = (
  *('pretrained', 'dropout', 'trained'),
  *('tune', 'tune_at', 'tune_rank', 'tune_alpha'),
)
FOLDER = Path(__file__).parent
NAMES = tuple(sorted(x.stem for x in FOLDER.glob(f'*{SUFFIX}')))


def find(name: str, where: str = 'model.pretrained') -> Path:
  """The file of published weights, or `name` as a path.

  `where` is the field or the flag with the name, for the message.

  Raises:
    ConfigError: for a name without suffix that is not published.
  """
  if name in NAMES:
    return FOLDER / f'{name}{SUFFIX}'
  if not Path(name).suffix:
    raise errors.ConfigError(
      f'no weights {name!r}',
      where,
      f'one of {", ".join(NAMES)}, or a path of a {SUFFIX} file',
    )
  return Path(name).expanduser()


def existing(name: str, where: str = 'model.pretrained') -> Path:
  """As `find`, and raises IntegrityError for a file that is absent."""
  path = find(name, where)
  if not path.is_file():
    raise errors.IntegrityError(
      'unreadable weights: no such file',
      str(path),
      "give another path, or make the file with 'fedreid import-weights'",
    )
  return path


def card(path: Path) -> dict[str, Any]:
  """The card of a file, empty if it has none."""
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      found = json.loads((file.metadata() or {}).get(HEADER, '{}'))
      return found if isinstance(found, dict) else {}
  except (safetensors.SafetensorError, OSError, ValueError):
    # No error here: reading the tensors raises one that names the problem.
    return {}


def load(
  name: str,
  variables: Flat,
  image: tuple[int, int] | None = None,
  whole: bool = False,
) -> tuple[Flat, tuple[str, ...]]:
  """Replaces the backbone in variables by a file, and names the leaves read.

  Args:
    image: height and width of the images of the network, to which position
      embeddings of PyTorch's files are resized.
    whole: also replaces what else the file has, such as its neck.

  Raises:
    ConfigError: for an unknown name.
    IntegrityError: for a file that is absent, damaged or of another network.
  """
  path = existing(name)
  about = card(path)
  # Files of others have no card; a card without a form is from this package.
  if not about or about.get('form', OWN) != OWN:
    loaded = pytorch.load(path, variables, image, about, neck=whole)
    replaced = (n for n, x in loaded.items() if x is not variables[n])
    return loaded, tuple(replaced)
  read = safetensors_numpy.load_file(path)
  tensors = read if whole else trees.split(read, BACKBONE)[0]
  # Without tensors for the infrared parts they start from the visible ones.
  sources = {
    n: n if n in tensors else n.replace('/infrared_', '/') for n in variables
  }
  covered = {n: s for n, s in sources.items() if s in tensors}
  kinds = {_kind(n) for n in tensors}
  # Modules of a kind that the file lacks, which a published network inserts,
  # keep their values. All blocks of a deeper network are of a kind in the file.
  missing = sorted(
    n for n in variables.keys() - covered.keys() if _kind(n) in kinds
  )
  absent = sorted(tensors.keys() - set(covered.values()))
  wrong = [
    n for n, s in covered.items() if tensors[s].shape != variables[n].shape
  ]
  broken = [n for n, x in tensors.items() if not np.isfinite(x).all()]
  negative = [
    n for n, x in tensors.items() if _is_variance(n) and (x < 0).any()
  ]
  for kind, leaves in (
    ('the network has no', absent),
    ('the file has no', missing),
    ('the network has another shape of', wrong),
    ('not finite:', broken),
    ('negative variances:', negative),
  ):
    if leaves:
      raise errors.IntegrityError(
        f'{kind} {leaves[0]}',
        str(path),
        f'set the fields of the card, {settings(path)}, or start from random '
        "weights with model.pretrained=''",
      )
  new = {n: jnp.asarray(tensors[s], jnp.float32) for n, s in covered.items()}
  return variables | new, tuple(covered)


def _is_variance(leaf: str) -> bool:
  return leaf.endswith('/var')


def _kind(leaf: str) -> str:
  """The path of a module of the backbone without its numbers."""
  module = '/'.join(leaf.replace('/infrared_', '/').split('/')[1:3])
  return re.sub(r'\d+', '', module)


def fields(about: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of the network in a card that differ from their defaults.

  Returns `{'model.name': 'vit', 'vit.size': 's16'}`, the name always and the
  type of the computation never.
  """
  own = about.get('model', {})
  usual = vars(Model()) | {'name': ''}
  found = {
    f'model.{k}': v
    for k, v in _tuples(own).items()
    if k not in (*TRAINING, 'dtype') and usual.get(k) != v
  }
  group = plugins.group_of(own.get('name', ''))
  options = _tuples(about.get('options', {}).get(group, {}))
  if group in plugins.available(backbones):
    module = importlib.import_module(f'{backbones.__name__}.{group}')
    usual = vars(module.Options()) if hasattr(module, 'Options') else {}
    options = {k: v for k, v in options.items() if usual.get(k) != v}
  return found | {f'{group}.{k}': v for k, v in options.items()}


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
  return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def settings(path: Path) -> str:
  """The fields of the network in a card, as command-line overrides."""
  return sources.settings(fields(card(path)))


def save(
  path: Path,
  variables: Mapping[str, Any],
  about: dict[str, Any],
  parts: str = BACKBONE,
  dtype: Any = np.float32,
) -> None:
  """Writes the backbone of a model with a card.

  `model` of the card has the fields of the network; `source` and `world_seed`
  are the synthetic world, which `check_unseen` refuses.

  Args:
    parts: pattern of the leaves to write.
    dtype: type of the stored numbers, float32 or float16.

  Raises:
    IntegrityError: for a value that the type cannot hold.
  """
  chosen, _ = trees.split(dict(variables), parts)
  with np.errstate(over='ignore'):  # refused below
    arrays = {n: np.ascontiguousarray(x, dtype) for n, x in chosen.items()}
  for name, array in arrays.items():
    if (np.isfinite(array) != np.isfinite(chosen[name])).any():
      raise errors.IntegrityError(
        f'{name} has values that {np.dtype(dtype)} cannot hold',
        str(path),
        'store float32',
      )
  path.write_bytes(encode(arrays, about))


def encode(tensors: dict[str, np.ndarray], about: dict[str, Any]) -> bytes:
  """The content of a file of contiguous arrays with a card."""
  return safetensors_numpy.save(tensors, {HEADER: json.dumps(about)})


def check_unseen(name: str, source: str, world_seed: int) -> None:
  """Refuses a synthetic world on which weights were trained.

  Args:
    source: `data.source` with the version of a synthetic world.

  Raises:
    ConfigError: for such a world.
  """
  about = card(find(name))
  seen = about.get('source', FIRST_WORLD), about.get('world_seed')
  if seen == (source, world_seed):
    raise errors.ConfigError(
      f'{name} was trained on the persons of world {world_seed} of {source}',
      'data.world_seed',
      'choose another world',
    )
