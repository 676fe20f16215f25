"""Weights of other programs as `.safetensors` files for `model.pretrained`.

`convert` reads a `.pth` file of PyTorch, or a `.npz` or `.safetensors` file, of
one of the programs of `models.weights.sources`. The new file has the names of
the family of the network, float32 and no classifier; positions are resized when
a run reads it.
"""

import hashlib
import pickle
import shlex
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.core import archives, plugins
from fedreid_jax.models import weights
from fedreid_jax.models.weights import pytorch, sources
from fedreid_jax.training.files import atomic

# Keys of the weights among other things that training programs save.
NESTED = ('state_dict', 'model_state_dict', 'model', 'net', 'params')
# The first version of PyTorch whose `weights_only` runs no code of a file.
TRUSTED = 2, 6
_INSTALL = (
  "pip install 'torch>=2.6', or save the tensors where it is installed with "
  "numpy.savez('FILE.npz', **arrays)"
)
_PIXELS = ('pixel_mean', 'pixel_std')  # of fast-reid, 0 to 255


class Imported(NamedTuple):
  """Result of a conversion."""

  source: str  # one of `sources.SOURCES`
  fields: dict[str, Any]  # of the network, {'model.name': 'resnet50'}
  pixels: sources.Pixels  # for which the weights were trained
  path: Path  # of the new file
  size: int  # bytes
  tensors: int
  key: str  # entry of the file that contained the weights, '' for none
  stripped: dict[str, int]  # number of names by the prefix that was removed
  converted: dict[str, int]  # number of tensors by former type, unless float32
  left_out: list[str]  # names of tensors that are not of the backbone

  def lines(self) -> list[str]:
    """Returns lines for the console about the conversion."""
    source = sources.SOURCES[self.source]
    said = [f'wrote {self.path} ({self.size:,} bytes)']
    settings = sources.settings(self.fields)
    said.append(f'{source.title}: {self.tensors} tensors, {settings}')
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
      said.append(f'left out {number} that the backbone has not: {shown}{more}')
    pixels = {'data.mean': self.pixels.mean, 'data.std': self.pixels.std}
    note = self.pixels.note and f' ({self.pixels.note})'
    said.append(f'trained with {sources.settings(pixels)}{note}')
    return said + [source.note] * bool(source.note)

  def command(self) -> str:
    """Returns a command that trains from the new file."""
    fields = self.fields | {
      'data.mean': self.pixels.mean,
      'data.std': self.pixels.std,
      'model.pretrained': str(self.path),
    }
    return shlex.join(
      [
        *('fedreid', 'train', 'RECIPE'),
        *(f'--config.{n}={x}'.replace(', ', ',') for n, x in fields.items()),
      ]
    )


def convert(path: Path, out: Path) -> Imported:
  """Converts weights of another program to `.safetensors`.

  A `.pth` file has tensors by name, or a dict with such a dict in `NESTED`.

  Raises:
    ConfigError: without PyTorch for a `.pth` file, or for another suffix of
      `out`.
    IntegrityError: for a file that is absent or damaged, holds more than plain
      values, or has no weights of a network of the package.
  """
  if out.suffix != weights.SUFFIX:
    raise errors.ConfigError(
      f'{out.name} is no {weights.SUFFIX} file', '--out', 'change its suffix'
    )
  state, key, card = _read(path)
  names = sources.read(state, str(path))
  tensors, converted = _collected(state, names, path)
  shapes = {name: x.shape for name, x in tensors.items()}
  fields = sources.known(names.source, shapes, str(path))
  pixels = _pixels(state, names)
  about: dict[str, Any] = {
    'form': sources.SOURCES[names.source].family,
    'imported': {
      'source': names.source,
      'sha256': hashlib.sha256(path.read_bytes()).hexdigest(),
    },
    'normalisation': {'mean': pixels.mean, 'std': pixels.std},
  }
  if 'run' in card:  # with the digests of the images that trained them
    about['run'] = card['run']
  content = weights.encode(dict(sorted(tensors.items())), about)
  atomic.write_bytes(out, content)
  return Imported(
    names.source,
    fields,
    pixels,
    out,
    len(content),
    len(tensors),
    key,
    names.stripped,
    converted,
    names.left_out,
  )


def _collected(
  state: Mapping[str, Any], names: sources.Names, path: Path
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
  """Float32 arrays by the name of the family, and counts of former types."""
  converted: Counter[str] = Counter()
  tensors: dict[str, np.ndarray] = {}
  for name, full in names.tensors.items():
    parts: list[np.ndarray] = []
    for one in full:
      # The bias that keys lack is zero.
      array, kind = _array(state[one]) if one else (parts[0] * 0, 'float32')
      if kind != 'float32':
        converted[kind] += 1
      pytorch.check_values(one, array, path)
      parts.append(array)
    array = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if name in pytorch.TOKENS:
      array = array.reshape(1, -1, array.shape[-1])
    if name == pytorch.POSITIONS:
      array = pytorch.with_class_position(names, array)
    tensors[name] = array
  return tensors, dict(converted)


def _pixels(state: Mapping[str, Any], names: sources.Names) -> sources.Pixels:
  """The normalisation in the file, or else that of the source."""
  own = [f'{names.shared}{name}' for name in _PIXELS]
  if not all(name in state for name in own):
    return sources.SOURCES[names.source].pixels
  mean, std = (
    tuple(round(float(x) / 255, 6) for x in _array(state[name])[0].ravel())
    for name in own
  )
  return sources.Pixels(mean, std, 'of the file')


def _array(tensor: Any) -> tuple[np.ndarray, str]:
  """A float32 array and the former type of a tensor of NumPy or PyTorch."""
  kind = str(tensor.dtype).removeprefix('torch.')
  if not isinstance(tensor, np.ndarray):
    tensor = tensor.detach().float().contiguous().numpy()
  return np.ascontiguousarray(tensor, np.float32), kind


def _read(path: Path) -> tuple[Mapping[str, Any], str, Mapping[str, Any]]:
  """Tensors by name, the entry that contained them, and the card if any."""
  try:
    if path.suffix == '.npz':
      return archives.read_npz(path), '', {}
    if path.suffix == weights.SUFFIX:
      return safetensors_numpy.load_file(path), '', weights.card(path)
    torch = _torch()
    _refuse_programs(path)
    # weights_only allows tensors and plain values and runs no code of the file.
    found = torch.load(path, map_location='cpu', weights_only=True)
    card = found.get(weights.HEADER) if isinstance(found, dict) else None
    return (
      *_tensors(found, path, torch),
      card if isinstance(card, dict) else {},
    )
  except pickle.UnpicklingError as error:
    raise errors.IntegrityError(
      'holds more than tensors and plain values, and reading it could run code',
      str(path),
      "save the state_dict alone, torch.save(model.state_dict(), 'FILE.pth')",
    ) from error
  except (
    *(OSError, RuntimeError, EOFError, ValueError, KeyError, TypeError),
    *(safetensors.SafetensorError, zipfile.BadZipFile),
  ) as error:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    raise errors.IntegrityError(
      f'unreadable weights: {reason[:200]}', str(path), 'fetch the file again'
    ) from error


def _torch() -> Any:
  """PyTorch, of a version whose `weights_only` runs no code of a file."""
  torch = plugins.load_extra('torch', 'import-weights', _INSTALL)
  if tuple(map(int, torch.__version__.split('.')[:2])) < TRUSTED:
    raise errors.ConfigError(
      f'PyTorch {torch.__version__} can run code of a file that it reads '
      '(CVE-2025-32434)',
      'import-weights',
      _INSTALL,
    )
  return torch


def _refuse_programs(path: Path):
  """Refuses TorchScript, the format of OpenAI's files of CLIP."""
  if not zipfile.is_zipfile(path):
    return
  archives.check_zip(path)
  with zipfile.ZipFile(path) as file:
    names = file.namelist()
  if any(name.endswith('/constants.pkl') for name in names):
    raise errors.IntegrityError(
      'is a program of TorchScript, and reading it could run code',
      str(path),
      "save its tensors with torch.save(torch.jit.load('FILE.pt', "
      "map_location='cpu').state_dict(), 'FILE.pth')",
    )


def _tensors(found: Any, path: Path, torch: Any) -> tuple[dict[str, Any], str]:
  candidates = [('', found)]
  if isinstance(found, Mapping):
    candidates += [(key, found[key]) for key in NESTED if key in found]
  for key, one in candidates:
    if isinstance(one, Mapping):
      tensors = {n: x for n, x in one.items() if isinstance(x, torch.Tensor)}
      if tensors:
        # A tensor may repeat few stored values in a large shape.
        sizes = (x.numel() * x.element_size() for x in tensors.values())
        archives.check(path, sum(sizes))
        return tensors, key
  raise errors.IntegrityError(
    'has no tensors by name', str(path), f'looked for {", ".join(NESTED)}'
  )
