"""Published weights of backbones, and the format of their files.

A file has the leaves of a backbone under the names of this package,
`params/backbone/block0/conv/kernel`, and a card in its header: JSON under the
key `fedreid_jax` with the command, the data and their digest. Files in the
formats of PyTorch's programs are read too (`sources`); a card in such a file
has `"form": "torchvision"`, `"torchreid"` or `"timm"`. Names are those of the
program then, such as `layer1.0.downsample.0.weight`; those of a neck, which it
does not have, begin with `neck.`.
"""

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
from fedreid_jax.core import trees
from fedreid_jax.core.types import Flat
from fedreid_jax.models.weights import pytorch

SUFFIX = '.safetensors'
OWN = 'fedreid_jax'  # the form of all other files than those of PyTorch
HEADER = 'fedreid_jax'
# Source in cards that were written before synthetic worlds had versions.
FIRST_WORLD = 'synthetic_v1'
BACKBONE = r'(params|batch_stats)/backbone/'
FOLDER = Path(__file__).parent
NAMES = tuple(sorted(x.stem for x in FOLDER.glob(f'*{SUFFIX}')))


def find(name: str) -> Path:
  """The file of published weights, or `name` as a path.

  Raises:
    ConfigError: for a name without suffix that is not published.
  """
  if name in NAMES:
    return FOLDER / f'{name}{SUFFIX}'
  if not Path(name).suffix:
    raise errors.ConfigError(
      f'no weights {name!r}',
      'model.pretrained',
      f'one of {", ".join(NAMES)}, or a path of a {SUFFIX} file',
    )
  return Path(name).expanduser()


def card(path: Path) -> dict[str, Any]:
  """The card of a file, empty if it has none."""
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      return json.loads((file.metadata() or {}).get(HEADER, '{}'))
  except (safetensors.SafetensorError, OSError, ValueError):
    # No error here: reading the tensors raises one that names the problem.
    return {}


def load(
  name: str, variables: Flat, image: tuple[int, int] | None = None
) -> tuple[Flat, tuple[str, ...]]:
  """Replaces the backbone in variables by a file, and names the leaves read.

  Args:
    image: height and width of the images of the network, to which position
      embeddings of PyTorch's files are resized.

  Raises:
    ConfigError: for an unknown name.
    IntegrityError: for a file that is absent, damaged or of another network.
  """
  path = find(name)
  about = card(path)
  # Files of others have no card; a card without a form is from this package.
  if not about or about.get('form', OWN) != OWN:
    loaded = pytorch.load(path, variables, image, about)
    return loaded, tuple(pytorch.covered(loaded))
  read = safetensors_numpy.load_file(path)
  tensors, _ = trees.split(read, BACKBONE)
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
        f'set the fields of the card: {settings(path)}',
      )
  new = {n: jnp.asarray(tensors[s]) for n, s in covered.items()}
  return variables | new, tuple(covered)


def _is_variance(leaf: str) -> bool:
  return leaf.endswith('/var')


def _kind(leaf: str) -> str:
  """The path of a module of the backbone without its numbers."""
  module = '/'.join(leaf.replace('/infrared_', '/').split('/')[1:3])
  return re.sub(r'\d+', '', module)


def settings(path: Path) -> str:
  """The fields of the network in a card, as command-line overrides."""
  fields = card(path).get('model', {})
  tuples = {
    k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()
  }
  return ','.join(
    f'model.{k}={v!r}'.replace(' ', '') for k, v in tuples.items()
  )


def save(path: Path, variables: Mapping[str, Any], about: dict[str, Any]):
  """Writes the backbone of a model with a card.

  `model` of the card has the fields of the network; `source` and `world_seed`
  are the synthetic world, which `check_unseen` refuses.
  """
  chosen, _ = trees.split(dict(variables), BACKBONE)
  arrays = {n: np.ascontiguousarray(x, np.float32) for n, x in chosen.items()}
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
