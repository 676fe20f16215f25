"""Models and weights in the formats of other programs.

`export` writes a file of a program or of weights, with a description of the
model; a program is read again and compared with the evaluation first.

- jax: a program of `jax.export`, lowered for CPU, CUDA and TPU, in an
  uncompressed ZIP archive of `program.bin` and `about.json`.
  `jax.export.deserialize` reads the program. It needs JAX and flatbuffers, but
  neither this package nor Flax.
- onnx: `onnx_file`.
- safetensors and torch: tensors. A network without inserted modules is written
  with PyTorch's names and layout, those of torchvision for a ResNet, of
  torchreid for OSNet and of timm for a transformer. Other networks have no
  counterpart there: their tensors have this package's names and layout, in
  safetensors only. `model.pretrained` reads the backbone of each `.safetensors`
  file.
- trackers: `trackers_folder`, two files in a folder.
"""

import io
import json
import shlex
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import export as jax_export

from fedreid_jax import errors
from fedreid_jax.apps.deploy import embedding as embedding_lib
from fedreid_jax.apps.deploy import image_input, onnx_file, trackers_folder
from fedreid_jax.apps.deploy.embedding import IMAGES, MODALITIES, Embedding
from fedreid_jax.apps.deploy.image_input import ImageInput
from fedreid_jax.config import recipes, validation
from fedreid_jax.core import plugins
from fedreid_jax.models import networks, weights
from fedreid_jax.models.weights import pytorch
from fedreid_jax.training.files import atomic

PLATFORMS = ('cpu', 'cuda', 'tpu')
PROGRAM, ABOUT = 'program.bin', 'about.json'
# The guarantee of `jax.export` for serialized programs.
READABLE = (
  f'JAX {jax.__version__} and versions released within six months of it read '
  'the program; export it again for later ones'
)
# With a fixed date equal programs have equal files.
_DATE = (1980, 1, 1, 0, 0, 0)

PYTORCH = 'pip install torch, or use --format=safetensors'
STATE = 'state_dict'  # key of the tensors in a .pth file
# Largest difference from the evaluation, as a share of the largest value, or of
# 1 if that is smaller. bfloat16 has eight bits.
TOLERANCE = {'float32': 1e-4, 'bfloat16': 0.1}
_IMAGES = 4  # of the check: one alone, then three


def lowered(embedding: Embedding) -> jax_export.Exported:
  """The embedding lowered for `PLATFORMS`."""
  function = jax.jit(lambda *inputs: embedding.call(*inputs))
  # Without the limit, JAX stores the source line of each operation with
  # absolute paths of this machine.
  before = jax.config.jax_traceback_in_locations_limit  # pyright: ignore
  jax.config.update('jax_traceback_in_locations_limit', 0)
  try:
    return jax_export.export(function, platforms=PLATFORMS)(
      *embedding.inputs.values()
    )
  finally:
    jax.config.update('jax_traceback_in_locations_limit', before)


def encode_jax(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """Encodes the format jax, or raises ConfigError without flatbuffers."""
  plugins.load_extra(
    'flatbuffers', '--format=jax', plugins.install_command('export')
  )
  content = io.BytesIO()
  with zipfile.ZipFile(content, 'w') as file:
    for name, member in (
      (ABOUT, json.dumps(about | {'readable': READABLE}, indent=2).encode()),
      (PROGRAM, bytes(lowered(embedding).serialize())),
    ):
      file.writestr(zipfile.ZipInfo(name, _DATE), member)
  return content.getvalue()


def read_jax(path: Path) -> Callable[..., np.ndarray]:
  """The program of a file as a function of arrays on the host."""
  with zipfile.ZipFile(path) as file:
    program = jax_export.deserialize(bytearray(file.read(PROGRAM)))
  call = jax.jit(program.call)
  return lambda *inputs: np.asarray(call(*inputs))


def form(embedding: Embedding) -> str:
  """The form of the names of tensors, a family of PyTorch or OWN."""
  variables = embedding.variables
  return (
    pytorch.family(variables) if pytorch.tensors(variables) else weights.OWN
  )


def encode_safetensors(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """The content of a `.safetensors` file."""
  tensors = pytorch.tensors(embedding.variables) or {
    n: np.ascontiguousarray(x) for n, x in embedding.variables.items()
  }
  return weights.encode(tensors, about | {'form': form(embedding)})


def encode_pth(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """A `.pth` file that `torch.load` reads with `weights_only=True`.

  Raises:
    ConfigError: without PyTorch, or for a network without counterpart there.
  """
  model = embedding.config.model
  tensors = pytorch.tensors(embedding.variables)
  if not tensors:
    infrared = embedding_lib.INFRARED
    two = any(name.startswith(infrared) for name in embedding.variables)
    raise errors.ConfigError(
      f'PyTorch has no network {model.name!r} with '
      f'{model.modality_specific_stages} modality-specific stages and the '
      f'modules of {", ".join(embedding.config.components)}'
      + ', and moments of each modality'
      * two,
      '--format=torch',
      'use --format=onnx, or --format=safetensors with the names of this '
      'package',
    )
  torch = plugins.load_extra('torch', '--format=torch', PYTORCH)
  state = {n: torch.from_numpy(x.copy()) for n, x in tensors.items()}
  content = io.BytesIO()
  torch.save({STATE: state, weights.HEADER: about}, content)
  return content.getvalue()


# Of a file, or of the files of a folder by name. Readers know a folder by the
# last one.
Content = bytes | dict[str, bytes]


class Format(NamedTuple):
  """A kind of file, or of folder."""

  suffix: str
  encode: Callable[[Embedding, dict[str, Any]], Content]  # with a description
  # (path) -> function of the inputs; None for a file of tensors
  reader: Callable[[Path], Callable[..., np.ndarray]] | None = None
  dtype: str = ''  # of the computation; '' for the type of the run
  inputs: bool = False  # whether another form of the images can be chosen
  packages: tuple[str, ...] = ()  # that the format needs
  folder: bool = False
  remedy: str = plugins.install_command('export')  # how to install them


FORMATS = {
  'jax': Format('.jax.zip', encode_jax, read_jax, packages=('flatbuffers',)),
  'onnx': Format(
    onnx_file.SUFFIX,
    onnx_file.encode,
    onnx_file.reader,
    # ONNX Runtime has no convolutions of bfloat16 on the CPU.
    dtype='float32',
    inputs=True,
    packages=('onnx', 'onnxruntime'),
  ),
  'safetensors': Format(weights.SUFFIX, encode_safetensors),
  'torch': Format('.pth', encode_pth, packages=('torch',), remedy=PYTORCH),
  'trackers': Format(
    trackers_folder.SUFFIX, trackers_folder.encode, folder=True
  ),
}


class Written(NamedTuple):
  """An exported file or folder."""

  path: Path
  size: int  # in bytes, of all files
  about: dict[str, Any]  # description by `embedding.describe`
  # Largest difference from the evaluation on random images, None for weights.
  difference: float | None
  num_tensors: int  # weights on which the embedding depends
  # Convention of the names of tensors in a file of weights, one of the forms of
  # `models.weights`; '' for a program.
  names: str
  private: bool = False  # the run has a guarantee of privacy


def export(
  workdir: Path | None,
  kind: str,
  out: Path | None = None,
  checkpoint: str = 'latest',
  model: str = '',
  received: ImageInput = image_input.DEFAULT,
  named: str = '',
  changes: Sequence[str] = (),
) -> Written:
  """Writes a model of a run in another format, one of `FORMATS`.

  The file is by default WORKDIR/MODEL-STEP with the suffix of the format;
  `checkpoint`, `model`, `received` and `changes` are as for `embedding.load`.
  Without a run the model is that of the weights `named`, and the file is in the
  working directory.

  Raises:
    ConfigError: for an unknown model, a missing package, another suffix, an
      input that the format does not have, or a network that it cannot express.
    ResourceError: for a folder that does not exist or cannot be written.
    IntegrityError: for a run or checkpoint that is absent or damaged.
  """
  chosen = FORMATS[kind]
  _check_request(kind, out, received)
  if workdir is None:
    out = out or Path(f'{Path(named).stem}{chosen.suffix}').absolute()
    _check_other(out, named)
    found = embedding_lib.load_weights(named, chosen.dtype, received, changes)
  else:
    found = embedding_lib.load(
      workdir, checkpoint, model, chosen.dtype, received, changes
    )
    # Names of models such as client:NAME have characters that paths reserve.
    name = found.name.replace(':', '-').replace('/', '-')
    out = out or workdir / f'{name}-{found.step}{chosen.suffix}'
  described = embedding_lib.describe(found)
  content = chosen.encode(found, described)
  difference, names = None, ''
  if chosen.reader is None:
    names = form(found)
  else:
    difference = _check(found, content, chosen.reader, kind)
  size, number = _write(out, content), len(found.variables)
  private = validation.is_private(found.config)
  return Written(out, size, described, difference, number, names, private)


def _check_request(kind: str, out: Path | None, received: ImageInput) -> None:
  """Refuses what can be known before the model is loaded and traced."""
  chosen = FORMATS[kind]
  named = out is None or chosen.folder or out.name.endswith(chosen.suffix)
  if out is not None and not named:
    raise errors.ConfigError(
      f'{out.name} is no name of the format {kind}',
      '--out',
      f'let it end in {chosen.suffix}',
    )
  if out is not None and not out.parent.is_dir():
    raise errors.ResourceError('no such folder', str(out.parent), 'create it')
  if received != image_input.DEFAULT and not chosen.inputs:
    able = ', '.join(name for name, one in FORMATS.items() if one.inputs)
    raise errors.ConfigError(
      f'the format {kind} has no layout and values of images',
      '--layout, --input',
      f'leave them out, or use --format={able}',
    )
  for package in chosen.packages:
    plugins.load_extra(package, f'--format={kind}', chosen.remedy)


def _check_other(out: Path, named: str) -> None:
  """Refuses to write a file of weights over itself."""
  if out.resolve() == weights.find(named, '--weights').resolve():
    raise errors.ConfigError(
      'the file would be written over the weights that are read',
      str(out),
      'give another --out',
    )


def _write(out: Path, content: Content) -> int:
  """Writes a file or a folder, and returns its bytes."""
  if isinstance(content, bytes):
    atomic.write_bytes(out, content)
    return len(content)
  with errors.on_disk(out):
    out.mkdir(exist_ok=True)
    # Without it, a folder of an earlier model is none while it is replaced.
    (out / [*content][-1]).unlink(missing_ok=True)
  for name, one in content.items():
    atomic.write_bytes(out / name, one)
  return sum(map(len, content.values()))


def _check(
  found: Embedding,
  content: Content,
  reader: Callable[[Path], Callable[..., np.ndarray]],
  kind: str,
) -> float:
  """The largest difference from the evaluation, at most `TOLERANCE`."""
  rng = np.random.default_rng(0)
  pixels = rng.integers(0, 256, (_IMAGES, *found.image_shape), np.uint8)
  kinds = (np.arange(_IMAGES) % 2).astype(np.int32)
  images = found.received.of_pixels(pixels, found.normalisation)
  inputs = {IMAGES: images, MODALITIES: kinds}
  arguments = [inputs[name] for name in found.inputs]
  # ONNX Runtime computes products in float32, and a GPU in a lower precision by
  # default.
  precision = 'highest' if kind == 'onnx' else None
  with jax.default_matmul_precision(precision):
    expected = found.evaluate(pixels, kinds)
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, 'program')
    _write(path, content)
    call = reader(path)
    # Two sizes of batches show that the number of images is not fixed.
    rows = [slice(0, 1), slice(1, _IMAGES)]
    got = np.concatenate([call(*(x[r] for x in arguments)) for r in rows])
  difference = float(np.abs(got - expected).max())
  # Of the evaluation, whose type may be another one than that of the program.
  own = networks.dtype(found.config.model.dtype, jax.default_backend())
  limit = TOLERANCE[own] * max(1, np.abs(expected).max())
  # The inverted comparison also refuses NaN.
  if not difference <= limit:
    raise errors.ConfigError(
      f'the program differs from the evaluation by {difference:.2g}',
      f'--format={kind}',
      'use another format, and report it',
    )
  return difference


def next_command(written: Written, kind: str) -> str:
  """A command that uses a file, one of `FORMATS`."""
  path = str(written.path)
  if kind == 'safetensors':
    return _train_command(path, written.about, written.private)
  code = {
    'jax': (
      'import jax, zipfile; '
      f'f = zipfile.ZipFile({path!r}); '
      "p = jax.export.deserialize(bytearray(f.read('program.bin'))); "
      'print(p.in_avals, p.out_avals)'
    ),
    'onnx': (
      'import onnxruntime; '
      f's = onnxruntime.InferenceSession({path!r}); '
      'print(s.get_modelmeta().description)'
    ),
    'torch': (
      'import torch; '
      f'f = torch.load({path!r}, weights_only=True); '
      "print(f['fedreid_jax']['summary'], *f['state_dict'])"
    ),
    'trackers': (
      'from reid import ReIDModel; '
      f'm = ReIDModel.from_pretrained({path!r}); '
      'print(m.preprocessing.describe())'
    ),
  }[kind]
  # A shell interprets these characters within double quotes; bash expands its
  # history at `!`.
  quoted = shlex.quote(code) if {*'"$`\\!'} & {*code} else f'"{code}"'
  return f'python -c {quoted}'


def _train_command(path: str, about: dict[str, Any], private: bool) -> str:
  recipe = about['run']['recipe']
  if private:  # which must not start from weights of the same persons
    recipe = ''
  fields = weights.fields(about) | {'model.pretrained': path}
  # Weights are refused for the synthetic world on which they were trained.
  if 'world_seed' in about:
    fields['data.world_seed'] = about['world_seed'] + 1
  return shlex.join(
    [
      *('fedreid', 'train'),
      recipe if recipe in recipes.names() else 'RECIPE',
      *(f'--config.{name}={value}' for name, value in fields.items()),
    ]
  )
