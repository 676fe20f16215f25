"""Converts weights from and to torchvision's format, in `.safetensors` files.

Names are torchvision's, such as `layer1.0.downsample.0.weight`. The names of a
neck, which torchvision does not have, begin with `neck.`.
"""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import safetensors

from fedreid_jax import errors
from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Flat, Tree

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


def load(path: str | Path, variables: Tree) -> Tree:
  """Returns the variables with the backbone of a weight file.

  Args:
    path: a `.safetensors` file of a ResNet with torchvision's names; `fc.*`,
      `neck.*` and `*.num_batches_tracked` are ignored.
    variables: nested dict with `params/backbone` and `batch_stats/backbone`
      of a `resnet.ResNet`; not modified.

  Returns:
    A new nested dict.

  Raises:
    IntegrityError: a file of another format, absent or damaged, or a tensor
      that is missing, unknown, of another shape or type, or not finite.
  """
  path = Path(path)
  flat = param_filter.flatten(variables)
  wanted: dict[str, list[str]] = {}
  for leaf in filter(covers, flat):
    wanted.setdefault(name(leaf), []).append(leaf)
  _check_format(path)
  try:
    with safetensors.safe_open(path, framework='numpy') as file:
      # Names, shapes and types are in the header, and are checked before any
      # tensor is read.
      _check_names(path, set(file.keys()), set(wanted))
      for key, leaves in wanted.items():
        tensor = jnp.asarray(_read(path, file, key, flat[leaves[0]].shape))
        # Visible and infrared leaves of the same name share the tensor.
        flat |= dict.fromkeys(leaves, tensor)
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.IntegrityError(
      f'unreadable weights: {error}', str(path), 'fetch the file again'
    ) from error
  return param_filter.unflatten(flat)


def covers(leaf: str) -> bool:
  """Returns whether a leaf is read from a weight file."""
  return _TORCHVISION.match(leaf) is not None


def name(leaf: str) -> str:
  """Returns torchvision's name of `params/backbone/layer1_0/bn1/scale`.

  The infrared parts start from the same tensors as the visible ones.
  """
  _, _, *modules, last = leaf.replace('/infrared_', '/').split('/')
  return '.'.join([m.replace('_', '.') for m in modules] + [_LEAVES[last]])


def tensors(variables: Flat) -> dict[str, np.ndarray]:
  """Returns variables in torchvision's names and layout, for PyTorch.

  `load` reads a file of these tensors. In PyTorch they are the state of a
  ResNet without `fc`; names such as `neck.bn.weight` are the state of a module
  `neck` with a linear layer `fc` and a layer `bn`.

  Args:
    variables: variables of the backbone and the neck, `{'params/...': array}`.

  Returns:
    Tensors by name; none if a leaf belongs neither to a ResNet of torchvision
    nor to the neck.
  """
  found = {}
  for leaf, value in variables.items():
    in_neck = _NECK.match(leaf) is not None
    if not in_neck and (not covers(leaf) or '/infrared_' in leaf):
      return {}
    value = np.asarray(value, np.float32)
    value = value.transpose({4: _TO_OIHW, 2: (1, 0), 1: (0,)}[value.ndim])
    prefix = 'neck.' if in_neck else ''
    found[prefix + name(leaf)] = np.ascontiguousarray(value)
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
