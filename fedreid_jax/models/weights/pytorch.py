"""Backbones in the names and the layout of PyTorch.

`tensors` writes the variables of a network as PyTorch has them, and `load`
reads a `.safetensors` file of one of `sources.SOURCES`. Each leaf of a backbone
has one name there: `params/backbone/layer1_0/bn1/scale` is
`layer1.0.bn1.weight`.
"""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import safetensors
from jaxtyping import Float32

from fedreid_jax import errors
from fedreid_jax.core.types import Flat
from fedreid_jax.models.weights import positions, sources
from fedreid_jax.models.weights.sources import (
  MOBILENET,
  TIMM,
  TORCHREID,
  TORCHVISION,
)

MEAN = 'running_mean'
_LEAVES = {
  'kernel': 'weight',
  'scale': 'weight',
  'bias': 'bias',
  'mean': MEAN,
  'var': 'running_var',
}
# Names in which `_` is no `.` of PyTorch.
_WHOLE = re.compile('(cls_token|reg_token|pos_embed|patch_embed|norm_pre)|_')
POSITIONS = 'pos_embed'
# CLIP stores these without the first axes, of length 1.
TOKENS = ('cls_token', 'reg_token', POSITIONS)
# Axes of PyTorch's kernels from those of Flax, and back.
_TO_PYTORCH = {4: (3, 2, 0, 1), 2: (1, 0)}
_FROM_PYTORCH = {4: (2, 3, 1, 0), 2: (1, 0)}
_NECK = re.compile(r'\w+/neck/')
# Tensors of files of this package that no network has: the last layer and the
# counters of a folder for trackers.
_AFTER = re.compile(rf'fc\.|.*{re.escape(sources.COUNTER)}$')
# Reading a pickled file runs code from it, so these are refused.
_PICKLED = ('.pth', '.pt', '.pkl', '.bin', '.ckpt', '.tar')


class Family(NamedTuple):
  """Names of the leaves of networks with counterparts in PyTorch."""

  mark: str  # a leaf that only these networks have
  # Of leaves with a counterpart. Modules that a published network inserts have
  # none, and keep their initial values.
  leaves: str


_FAMILIES = {
  TORCHVISION: Family(
    'layer4_0/downsample_0/kernel', r'(infrared_)?(conv1|bn1|layer\d_\d+)/'
  ),
  MOBILENET: Family('features_1/conv_0_0/kernel', r'features_\d+(_\d)?/'),
  TORCHREID: Family('conv2_0/gate/fc1/kernel', r'(conv|pool)\d(_\d+)*/'),
  TIMM: Family(
    'blocks_0/attn/qkv/kernel',
    r'(cls_token|reg_token|pos_embed)$|(patch_embed_proj|norm_pre|norm|blocks_\d+)/',
  ),
}


def family(variables: Flat) -> str:
  """The family of the names of a network in PyTorch, '' for none."""
  for name, one in _FAMILIES.items():
    if f'params/backbone/{one.mark}' in variables:
      return name
  return ''


def covered(variables: Flat) -> list[str]:
  """The leaves that a file of PyTorch replaces."""
  if not (name := family(variables)):
    return []
  leaf = re.compile(rf'\w+/backbone/({_FAMILIES[name].leaves})')
  return [n for n in variables if leaf.match(n)]


def name_of(leaf: str) -> str:
  """PyTorch's name of a leaf such as `params/backbone/layer1_0/bn1/scale`.

  Names of a neck begin with `neck.`.
  """
  _, part, *modules, last = leaf.replace('/infrared_', '/').split('/')
  names = [*modules, _LEAVES.get(last, last)]
  prefix = 'neck.' if part == 'neck' else ''
  # The leaves of PyTorch, such as `running_mean`, keep their `_`.
  return prefix + '.'.join(
    n if n in _LEAVES.values() else _WHOLE.sub(lambda m: m[1] or '.', n)
    for n in names
  )


def tensors(variables: Flat) -> dict[str, np.ndarray]:
  """Returns variables in PyTorch's names and layout.

  `load` reads a file of these tensors. In PyTorch they are the state of a
  network without its classifier; names such as `neck.bn.weight` are the state
  of a module `neck` with a linear layer `fc` and a layer `bn`. There are none
  if a leaf has no counterpart.
  """
  own = {*covered(variables)}
  # Its networks have moments, which those with another normalisation lack.
  moments = any(n.startswith('batch_stats/backbone/') for n in variables)
  if family(variables) in sources.STRIDED and not moments:
    return {}
  if family(variables) == TIMM and f'params/backbone/{POSITIONS}' not in own:
    return {}  # timm has rotated positions in another network
  written: dict[str, np.ndarray] = {}
  for leaf, value in variables.items():
    if not _NECK.match(leaf) and (leaf not in own or '/infrared_' in leaf):
      return {}
    value = np.asarray(value, np.float32)
    axes = _TO_PYTORCH.get(value.ndim) if leaf.endswith('/kernel') else None
    written[name_of(leaf)] = np.ascontiguousarray(
      value.transpose(axes) if axes else value
    )
  return written


class File(NamedTuple):
  """An open `.safetensors` file."""

  path: Path
  content: Any  # of safetensors
  names: sources.Names

  def shapes(self) -> dict[str, tuple[int, ...]]:
    """Shapes by the name of the family."""
    found: dict[str, tuple[int, ...]] = {}
    for name in self.names.tensors:
      first, *more = self.parts(name)
      # Queries, keys and values are joined at their first axis.
      rows = sum(part[0] for part in (first, *more)) if more else 0
      found[name] = (rows, *first[1:]) if more else first
    return found

  def parts(self, name: str) -> list[tuple[int, ...]]:
    """Shapes of the tensors of the file that are joined to one."""
    full = self.names.tensors[name]
    # The bias that keys lack is as long as that of queries.
    return [
      tuple(self.content.get_slice(n or full[0]).get_shape()) for n in full
    ]

  def refused(self, what: str, shapes: sources.Shapes) -> errors.IntegrityError:
    """An error that says of which network the file is."""
    source = sources.SOURCES[self.names.source]
    fields, described = sources.network(self.names.source, shapes)
    set_to = sources.settings(fields)
    return errors.IntegrityError(
      what,
      str(self.path),
      f'the file is of {source.title}: set {set_to}'
      if fields
      else f'the file is of {source.title}, {described}',
    )


def load(
  path: Path,
  variables: Flat,
  image: positions.Grid | None = None,
  about: dict[str, Any] | None = None,
  neck: bool = False,
) -> Flat:
  """Replaces the backbone in variables by a file in PyTorch's format.

  Position embeddings are resized to the grid of the network. Classifiers, necks
  and `*.num_batches_tracked` of the file are ignored.

  Args:
    image: height and width of the images of the network, for positions.
    about: card of the file, if it has one; its names are those of the family.
    neck: reads a neck as well, in a file of this package.

  Raises:
    IntegrityError: for a file or tensor that is absent, damaged or unsuitable.
  """
  with _opened(path, about or {}, neck) as file:
    return variables | _read_all(file, variables, image, about or {})


def network(path: Path, about: dict[str, Any]) -> tuple[str, dict[str, Any]]:
  """The source of a file, one of `sources.SOURCES`, and its network's fields.

  Raises:
    IntegrityError: for a file that is absent or damaged, or of a network that
      the package does not have.
  """
  with _opened(path, about) as file:
    source = file.names.source
    return source, sources.known(source, file.shapes(), str(path))


@contextlib.contextmanager
def _opened(
  path: Path, about: dict[str, Any], neck: bool = False
) -> Iterator[File]:
  """Opens a file; its names, shapes and types are in the header."""
  check_format(path)
  try:
    with safetensors.safe_open(path, framework='numpy') as content:
      names = _names(path, [*content.keys()], about, neck)
      yield File(path, content, names)
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.IntegrityError(
      f'unreadable weights: {error}', str(path), 'fetch the file again'
    ) from error


def check_format(path: Path) -> None:
  """Raises IntegrityError for another file than `.safetensors`."""
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


def _names(
  path: Path, names: list[str], about: dict[str, Any], neck: bool
) -> sources.Names:
  form = about.get('form')
  if form not in _FAMILIES:
    return sources.read(names, str(path))
  # A file of this package, by `tensors` or by `fedreid import-weights`.
  imported = about.get('imported')
  source = imported.get('source') if isinstance(imported, dict) else form
  source = source if source in sources.SOURCES else form
  own = {
    n: (n,)
    for n in names
    if not _AFTER.match(n) and (neck or not n.startswith('neck.'))
  }
  return sources.Names(source, own, [], {})


def _read_all(
  file: File, variables: Flat, image: positions.Grid | None, about: Any
) -> Flat:
  shapes = file.shapes()
  wanted: dict[str, list[str]] = {}
  necks = [leaf for leaf in variables if _NECK.match(leaf)]
  if not any(name.startswith('neck.') for name in shapes):
    necks = []
  for leaf in (*covered(variables), *necks):
    wanted.setdefault(name_of(leaf), []).append(leaf)
  for name in wanted:
    if name not in shapes:
      raise file.refused(f'no tensor {name}', shapes)
  for name, full in file.names.tensors.items():
    if name not in wanted:
      unknown = f'the network has no {full[0]} {[*shapes[name]]}'
      raise file.refused(unknown, shapes)
  for name, leaves in wanted.items():
    _check(file, name, shapes, leaves[0], variables[leaves[0]].shape)
  found: Flat = {}
  for name, leaves in wanted.items():
    tensor = from_pytorch(leaves[0], _checked(file, name))
    if name == POSITIONS:
      if 'form' not in about:
        tensor = with_class_position(file.names, tensor)
      kernel = variables['params/backbone/patch_embed_proj/kernel']
      num, patch = variables[leaves[0]].shape[1] - 1, kernel.shape[0]
      tensor = _resized(file, tensor, num, patch, image, about)
    # Visible and infrared leaves of the same name share the tensor.
    found |= dict.fromkeys(leaves, jnp.asarray(tensor))
  return found


def from_pytorch(leaf: str, tensor: np.ndarray) -> np.ndarray:
  """A tensor in the layout of its leaf."""
  if leaf.endswith(TOKENS):
    return tensor.reshape(1, -1, tensor.shape[-1])
  axes = _FROM_PYTORCH.get(tensor.ndim) if leaf.endswith('/kernel') else None
  return tensor.transpose(axes) if axes else tensor


def _check(
  file: File,
  name: str,
  shapes: sources.Shapes,
  leaf: str,
  wanted: tuple[int, ...],
):
  """Refuses a tensor by its type and shape."""
  for full in filter(None, file.names.tensors[name]):
    kind = file.content.get_slice(full).get_dtype()
    if kind != 'F32':
      raise errors.IntegrityError(
        f'tensor {full} is {kind}, not F32',
        str(file.path),
        "use float32 weights, or convert them with 'fedreid import-weights'",
      )
  shape = shapes[name]
  if leaf.endswith('/kernel'):
    wanted = tuple(wanted[axis] for axis in _TO_PYTORCH[len(wanted)])
  parts = file.parts(name)
  fits = shape == wanted and len(set(parts)) == 1
  if name in TOKENS:
    fits = (1, 1, *shape)[-len(wanted) :] == wanted
  if name == POSITIONS:  # their number may differ
    fits = len(shape) in (2, 3) and shape[-1] == wanted[-1]
  if not fits:
    full = ' + '.join(filter(None, file.names.tensors[name]))
    own = ' + '.join(str([*part]) for part in parts)
    raise file.refused(f'tensor {full} is {own}, not {[*wanted]}', shapes)


def check_values(name: str, tensor: np.ndarray, where: Path) -> None:
  """Raises IntegrityError for values that no network can have."""
  if not np.isfinite(tensor).all():
    what = 'values that are not finite'
  elif name.endswith(f'.{_LEAVES["var"]}') and (tensor < 0).any():
    what = 'negative variances'
  else:
    return
  raise errors.IntegrityError(
    f'tensor {name} has {what}', str(where), 'fetch the file again'
  )


def _checked(file: File, name: str) -> np.ndarray:
  parts: list[np.ndarray] = []
  for full in file.names.tensors[name]:
    tensor = file.content.get_tensor(full) if full else parts[0] * 0
    check_values(full, tensor, file.path)
    parts.append(tensor)
  return np.concatenate(parts) if len(parts) > 1 else parts[0]


def with_class_position(
  names: sources.Names, table: Float32[np.ndarray, '1 n D']
) -> Float32[np.ndarray, '1 m D']:
  """Positions with that of the class token, which timm adds to the token.

  timm does so for networks with registers, whose positions are a square then.
  """
  side = math.isqrt(table.shape[1])
  bare = names.source == 'timm' and 'reg_token' in names.tensors
  if not bare or side * side != table.shape[1]:
    return table
  return np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)


def _resized(
  file: File,
  tensor: Float32[np.ndarray, '1 n D'],
  num: int,
  patch: int,
  image: positions.Grid | None,
  about: dict[str, Any],
) -> Float32[np.ndarray, '1 m D']:
  """Positions for `num` patches; that of the class token is unchanged."""
  source = sources.SOURCES[file.names.source]
  old_num = tensor.shape[1] - 1
  if image is None and old_num == num:
    return tensor
  old, new = None, (0, 0)
  if image is not None:
    new = positions.grid(image, patch, num)
    if saved := about.get('preprocessing'):
      old = positions.grid((saved['height'], saved['width']), patch, old_num)
    else:
      old = positions.guess(old_num, new, patch, source.square)
  if old is None:
    raise errors.IntegrityError(
      f'tensor {file.names.tensors[POSITIONS][0]} has {old_num} positions, not '
      f'{num}, and their grid is unknown',
      str(file.path),
      'use weights for square images, or for images of the size of this run',
    )
  table = positions.resize(tensor[0, 1:], old, new, source.resize)
  return np.concatenate([tensor[:, :1], table[None]], axis=1)
