"""ImageNet weights in torchvision's format, from `.safetensors` files only.

The names are torchvision's, `layer1.0.downsample.0.weight`. Pickled files are
refused, since reading them runs code; names, shapes and types are checked in
the header before any tensor is read.
"""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import safetensors

from fedreid_jax import errors
from fedreid_jax.core import param_filter
from fedreid_jax.core.types import Tree

_LEAVES = {
  'kernel': 'weight',
  'scale': 'weight',
  'bias': 'bias',
  'mean': 'running_mean',
  'var': 'running_var',
}
# Modules that a published network inserts keep their initial values.
_TORCHVISION = re.compile(r'\w+/backbone/(infrared_)?(conv1|bn1|layer\d_\d+)/')
_TO_OIHW, _TO_HWIO = (3, 2, 0, 1), (2, 3, 1, 0)


def load(path: str | Path, variables: Tree) -> Tree:
  """Returns the variables with the backbone of a weight file.

  Args:
    path: a `.safetensors` file of a ResNet with torchvision's names; `fc.*` and
      `*.num_batches_tracked` are ignored.
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
      _check_names(path, set(file.keys()), set(wanted))
      for key, leaves in wanted.items():
        tensor = jnp.asarray(_read(path, file, key, flat[leaves[0]].shape))
        flat |= dict.fromkeys(leaves, tensor)
  except (safetensors.SafetensorError, OSError) as error:
    raise errors.IntegrityError(
      f'unreadable weights: {error}', str(path), 'fetch the file again'
    ) from error
  return param_filter.unflatten(flat)


def covers(leaf: str) -> bool:
  """Returns whether a leaf comes from a weight file."""
  return _TORCHVISION.match(leaf) is not None


def name(leaf: str) -> str:
  """Returns torchvision's name of `params/backbone/layer1_0/bn1/scale`.

  The infrared parts start from the same tensors as the visible ones.
  """
  _, _, *modules, last = leaf.replace('/infrared_', '/').split('/')
  return '.'.join([m.replace('_', '.') for m in modules] + [_LEAVES[last]])


def _check_format(path: Path):
  if path.suffix != '.safetensors':
    raise errors.IntegrityError(
      f'weights of format {path.suffix or "unknown"!r}',
      str(path),
      'convert them to .safetensors at their source; pickles are not read',
    )


def _check_names(path: Path, found: set[str], wanted: set[str]):
  ignored = {
    key
    for key in found
    if key.startswith('fc.') or key.endswith('.num_batches_tracked')
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
