"""Published weights of backbones, and the format of their files.

A file has the leaves of a backbone under the names of this package,
`params/backbone/block0/conv/kernel`, and a card in its header: JSON under the
key `fedreid_jax` with the command, the data and their digest. Files in
torchvision's format are read too; a card in such a file has
`"form": "torchvision"`. Names are torchvision's then, such as
`layer1.0.downsample.0.weight`; those of a neck, which torchvision does not
have, begin with `neck.`.
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

_LEAVES = {
  'kernel': 'weight',
  'scale': 'weight',
  'bias': 'bias',
  'mean': 'running_mean',
  'var': 'running_var',
}
# Modules that a published network inserts keep their initial values.
_TORCHVISION = re.compile(r'\w+/backbone/(infrared_)?(conv1|bn1|layer\d_\d+)/')
# Axes of PyTorch's kernels from those of Flax, and back.
_TO_OIHW, _TO_HWIO = (3, 2, 0, 1), (2, 3, 1, 0)
_NECK = re.compile(r'\w+/neck/')
# Reading a pickled file runs code from it, so these are refused.
_PICKLED = ('.pth', '.pt', '.pkl', '.bin', '.ckpt', '.tar')
SUFFIX = '.safetensors'
OWN, TORCHVISION = 'fedreid_jax', 'torchvision'  # forms
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


def form(path: Path) -> str:
  """The naming of the tensors in a file, `OWN` or `TORCHVISION`."""
  # Files of others have no card; a card without a form is from this package.
  about = card(path)
  return about.get('form', OWN) if about else TORCHVISION


def load(name: str, variables: Flat) -> tuple[Flat, tuple[str, ...]]:
  """Replaces the backbone in variables by a file, and names the leaves read.

  Raises:
    ConfigError: for an unknown name.
    IntegrityError: for a file that is absent, damaged or of another network.
  """
  path = find(name)
  if form(path) == TORCHVISION:
    loaded = load_torchvision(path, variables)
    return loaded, tuple(filter(covers, loaded))
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
  for kind, leaves in (
    ('the network has no', absent),
    ('the file has no', missing),
    ('the network has another shape of', wrong),
    ('not finite:', broken),
  ):
    if leaves:
      raise errors.IntegrityError(
        f'{kind} {leaves[0]}',
        str(path),
        f'set the fields of the card: {settings(path)}',
      )
  new = {n: jnp.asarray(tensors[s]) for n, s in covered.items()}
  return variables | new, tuple(covered)


def load_torchvision(path: Path, variables: Flat) -> Flat:
  """Replaces the backbone in variables by a file in torchvision's format.

  `fc.*`, `neck.*` and `*.num_batches_tracked` of the file are ignored.

  Raises:
    IntegrityError: for a file or tensor that is absent, damaged or unsuitable.
  """
  found = dict(variables)
  wanted: dict[str, list[str]] = {}
  for leaf in filter(covers, found):
    wanted.setdefault(torchvision_name(leaf), []).append(leaf)
  _check_format(path)
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      # Names, shapes and types are in the header, and are checked before any
      # tensor is read.
      _check_names(path, set(file.keys()), set(wanted))
      for key, leaves in wanted.items():
        tensor = jnp.asarray(_read(path, file, key, found[leaves[0]].shape))
        # Visible and infrared leaves of the same name share the tensor.
        found |= dict.fromkeys(leaves, tensor)
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.IntegrityError(
      f'unreadable weights: {error}', str(path), 'fetch the file again'
    ) from error
  return found


def covers(leaf: str) -> bool:
  """Returns whether a leaf is read from a weight file."""
  return _TORCHVISION.match(leaf) is not None


def torchvision_name(leaf: str) -> str:
  """Returns torchvision's name of `params/backbone/layer1_0/bn1/scale`."""
  _, _, *modules, last = leaf.replace('/infrared_', '/').split('/')
  return '.'.join([m.replace('_', '.') for m in modules] + [_LEAVES[last]])


def torchvision_tensors(variables: Flat) -> dict[str, np.ndarray]:
  """Returns variables in torchvision's names and layout, for PyTorch.

  `load` reads a file of these tensors. In PyTorch they are the state of a
  ResNet without `fc`; names such as `neck.bn.weight` are the state of a module
  `neck` with a linear layer `fc` and a layer `bn`. There are none if a leaf
  belongs neither to a ResNet of torchvision nor to the neck.
  """
  found = {}
  for leaf, value in variables.items():
    in_neck = _NECK.match(leaf) is not None
    if not in_neck and (not covers(leaf) or '/infrared_' in leaf):
      return {}
    value = np.asarray(value, np.float32)
    value = value.transpose({4: _TO_OIHW, 2: (1, 0), 1: (0,)}[value.ndim])
    prefix = 'neck.' if in_neck else ''
    found[prefix + torchvision_name(leaf)] = np.ascontiguousarray(value)
  return found


def _check_format(path: Path):
  if path.suffix in _PICKLED:
    raise errors.IntegrityError(
      f'a pickle, {path.suffix}, which may run code when it is read',
      str(path),
      f"convert it with 'fedreid import-weights {path} "
      f"--out={path.with_suffix('.safetensors')}', where PyTorch is installed",
    )
  if path.suffix != '.safetensors':
    raise errors.IntegrityError(
      f'weights of format {path.suffix or "unknown"!r}',
      str(path),
      'convert them to .safetensors at their source',
    )


def _check_names(path: Path, found: set[str], wanted: set[str]):
  ignored = {
    key
    for key in found
    if key.startswith(('fc.', 'neck.')) or key.endswith('.num_batches_tracked')
  }
  for what, keys in (
    ('no tensor', wanted - found),
    ('unknown tensor', found - wanted - ignored),
  ):
    if keys:
      raise errors.IntegrityError(
        f'{what} {min(keys)}',
        str(path),
        "use weights of the same network with torchvision's names",
      )


def _read(path: Path, file, key: str, shape: tuple[int, ...]) -> np.ndarray:
  header = file.get_slice(key)
  convolution = len(shape) == 4
  expected = [shape[axis] for axis in _TO_OIHW] if convolution else list(shape)
  found = header.get_shape(), header.get_dtype()
  if found != (expected, 'F32'):
    raise errors.IntegrityError(
      f'tensor {key} is {found[1]} {found[0]}, not F32 {expected}',
      str(path),
      'use float32 weights of the same network',
    )
  tensor = file.get_tensor(key)
  if not np.isfinite(tensor).all():
    raise errors.IntegrityError(
      f'tensor {key} has values that are not finite',
      str(path),
      'fetch the file again',
    )
  return tensor.transpose(_TO_HWIO) if convolution else tensor


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
