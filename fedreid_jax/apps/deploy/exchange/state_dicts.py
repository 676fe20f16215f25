"""Conversion of PyTorch's weights of a ResNet to a `.safetensors` file.

The tensors of the backbone are kept under torchvision's names, which
`models.weights` reads.
"""

import hashlib
import pickle
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import extras
from fedreid_jax.models import resnet, weights
from fedreid_jax.training.files import atomic

# Of DistributedDataParallel, and of networks that contain a ResNet.
PREFIXES = ('module.', 'backbone.')
# Keys of the weights among other things that training programs save.
NESTED = ('state_dict', 'model_state_dict', 'model', 'net', 'params')
_BACKBONE = re.compile(
  r'(conv1|bn1|layer[1-4]\.\d+\.(conv\d|bn\d|downsample\.[01]))'
  r'\.(weight|bias|running_mean|running_var)'
)
_CONVERT = 'use the weights of a ResNet of torchvision'


class Imported(NamedTuple):
  """Result of a conversion.

  Attributes:
    network: 'resnet50' for example.
    path: of the new file.
    size: in bytes.
    tensors: number of tensors.
    key: entry of the file that contained the weights, '' for none.
    stripped: number of names by the prefix that was removed.
    converted: number of tensors by their former type, unless float32.
    left_out: names of tensors that are not of the backbone.
  """

  network: str
  path: Path
  size: int
  tensors: int
  key: str
  stripped: dict[str, int]
  converted: dict[str, int]
  left_out: list[str]

  def lines(self) -> list[str]:
    """Returns lines for the console about the conversion."""
    said = [f'wrote {self.path} ({self.size:,} bytes)']
    said.append(f'{self.network}: {self.tensors} tensors of float32')
    if self.key:
      said.append(f'read the entry {self.key!r}')
    for prefix, number in self.stripped.items():
      said.append(
        f'removed the prefix {prefix!r} of {errors.counted(number, "name")}'
      )
    for kind, number in self.converted.items():
      said.append(
        f'converted {errors.counted(number, "tensor")} of {kind} to float32'
      )
    if self.left_out:
      shown = ', '.join(self.left_out[:5])
      more = ', ...' if len(self.left_out) > 5 else ''
      number = len(self.left_out)
      said.append(f'left out {number} that a ResNet has not: {shown}{more}')
    return said


def convert(path: Path, out: Path) -> Imported:
  """Converts a file of PyTorch's weights.

  Args:
    path: `.pth` file with tensors by name, or with a dict that contains such a
      dict under one of `NESTED`.
    out: file to write, `.safetensors`.

  Raises:
    ConfigError: without PyTorch, or for another suffix of `out`.
    IntegrityError: for a file that is absent, damaged, holds more than plain
      values, or has no weights of a ResNet.
  """
  if out.suffix != weights.SUFFIX:
    raise errors.ConfigError(
      f'{out.name} is no {weights.SUFFIX} file', '--out', 'change its suffix'
    )
  torch = extras.load('torch', 'import-weights', 'pip install torch')
  state, key = _tensors(_read(torch, path), path, torch)
  stripped: Counter[str] = Counter()
  converted: Counter[str] = Counter()
  tensors: dict[str, np.ndarray] = {}
  left_out = []
  for full, value in state.items():
    name, removed = _strip(full)
    if not _BACKBONE.fullmatch(name):
      # PyTorch's counters of batches are in each normalisation and have no use.
      if not name.endswith('.num_batches_tracked'):
        left_out.append(full)
      continue
    if name in tensors:
      raise errors.IntegrityError(
        f'two tensors are {name} without their prefixes', str(path), _CONVERT
      )
    stripped.update(removed)
    kind = str(value.dtype).removeprefix('torch.')
    if kind != 'float32':
      converted[kind] += 1
    array = value.detach().to(torch.float32).contiguous().numpy()
    if not np.isfinite(array).all():
      raise errors.IntegrityError(
        f'tensor {full} has values that are not finite',
        str(path),
        'fetch the file again',
      )
    tensors[name] = array
  network = _network(tensors, left_out, path)
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  card = {'form': weights.TORCHVISION, 'imported': {'sha256': digest}}
  content = weights.encode(dict(sorted(tensors.items())), card)
  atomic.write_bytes(out, content)
  return Imported(
    network,
    out,
    len(content),
    len(tensors),
    key,
    dict(stripped),
    dict(converted),
    left_out,
  )


def _read(torch: Any, path: Path) -> Any:
  # weights_only allows tensors and plain values and runs no code of the file.
  try:
    return torch.load(path, map_location='cpu', weights_only=True)
  except pickle.UnpicklingError as error:
    raise errors.IntegrityError(
      'holds more than tensors and plain values, and reading it could run code',
      str(path),
      "save the state_dict alone, torch.save(model.state_dict(), 'FILE.pth')",
    ) from error
  except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise errors.IntegrityError(
      f'unreadable weights: {reason[:200]}', str(path), 'fetch the file again'
    ) from error


def _tensors(found: Any, path: Path, torch: Any) -> tuple[dict[str, Any], str]:
  """Returns the tensors by name, and the key of the dict with them."""
  candidates = [('', found)]
  if isinstance(found, Mapping):
    candidates += [(key, found[key]) for key in NESTED if key in found]
  for key, one in candidates:
    if isinstance(one, Mapping):
      tensors = {n: x for n, x in one.items() if isinstance(x, torch.Tensor)}
      if tensors:
        return tensors, key
  raise errors.IntegrityError(
    'has no tensors by name', str(path), f'looked for {", ".join(NESTED)}'
  )


def _strip(name: str) -> tuple[str, list[str]]:
  """Returns a name without `PREFIXES`, and the removed prefixes."""
  removed = []
  while prefix := next((p for p in PREFIXES if name.startswith(p)), ''):
    name = name.removeprefix(prefix)
    removed.append(prefix)
  return name, removed


def _network(
  tensors: Mapping[str, Any], left_out: list[str], path: Path
) -> str:
  """Returns the name of the ResNet with these tensors, by its blocks."""
  if not tensors:
    raise errors.IntegrityError(
      f'has no tensor of a ResNet, but {", ".join(left_out[:3])}',
      str(path),
      _CONVERT,
    )
  blocks = {n.rpartition('.conv1.')[0] for n in tensors if '.conv1.' in n}
  stages = Counter(block.partition('.')[0] for block in blocks)
  sizes = tuple(stages[f'layer{k}'] for k in (1, 2, 3, 4))
  bottleneck = any('.conv3.' in name for name in tensors)
  for name, depth in resnet.DEPTHS.items():
    if depth == (bottleneck, sizes):
      return name
  raise errors.IntegrityError(
    f'is another ResNet, with {sizes} blocks',
    str(path),
    f'use one of {", ".join(resnet.DEPTHS)}',
  )
