"""Export of a model to a file, which is read again and checked."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedreid_jax import errors
from fedreid_jax.apps.deploy.exchange import (
  about,
  embedding,
  jax_file,
  onnx_file,
  weight_files,
)
from fedreid_jax.core import extras
from fedreid_jax.models import weights
from fedreid_jax.training.files import atomic


class Format(NamedTuple):
  """A kind of file.

  Attributes:
    suffix: suffix of the files.
    encode: `(Embedding, description) -> content`.
    reader: `(path) -> function of the inputs`; None for a file of tensors.
    dtype: type of the computation; '' for the type of the run.
    packages: packages that the format needs.
    remedy: how to install them.
  """

  suffix: str
  encode: Callable[[embedding.Embedding, dict[str, Any]], bytes]
  reader: Callable[[Path], Callable[..., np.ndarray]] | None = None
  dtype: str = ''
  packages: tuple[str, ...] = ()
  remedy: str = extras.command('export')


FORMATS = {
  'jax': Format(
    jax_file.SUFFIX,
    jax_file.encode,
    jax_file.reader,
    packages=('flatbuffers',),
  ),
  'onnx': Format(
    onnx_file.SUFFIX,
    onnx_file.encode,
    onnx_file.reader,
    # ONNX Runtime has no convolutions of bfloat16 on the CPU.
    dtype='float32',
    packages=('onnx', 'onnxruntime'),
  ),
  'safetensors': Format(weights.SUFFIX, weight_files.encode_safetensors),
  'torch': Format(
    '.pth',
    weight_files.encode_pth,
    packages=('torch',),
    remedy=weight_files.PYTORCH,
  ),
}
# Largest difference from the evaluation, as a share of the largest value, or of
# 1 if that is smaller. bfloat16 has eight bits.
TOLERANCE = {'float32': 1e-4, 'bfloat16': 0.1}
_IMAGES = 4  # of the check: one alone, then three


class Written(NamedTuple):
  """An exported file.

  Attributes:
    path: of the file.
    size: in bytes.
    about: description of the model by `about.describe`.
    difference: largest difference from the evaluation on random images; None
      for weights.
    num_tensors: number of weights on which the embedding depends.
    names: convention of the names of tensors in a file of weights, one of the
      forms of `models.weights`; '' for a program.
  """

  path: Path
  size: int
  about: dict[str, Any]
  difference: float | None
  num_tensors: int
  names: str


def export(
  workdir: Path,
  kind: str,
  out: Path | None = None,
  checkpoint: str = 'latest',
  model: str = '',
) -> Written:
  """Writes a model of a run in another format.

  A program is read again and compared with the evaluation before the file is
  written.

  Args:
    workdir: work directory of the run.
    kind: one of `FORMATS`.
    out: file; by default WORKDIR/MODEL-STEP with the suffix of the format.
    checkpoint: 'latest', 'best', or the number of a round that was saved.
    model: name of the model; '' for the server's, or the first of several.

  Raises:
    ConfigError: for a model that the run does not have, a package that is not
      installed, another suffix, or a network that the format cannot express.
    ResourceError: for a folder that does not exist or cannot be written.
    IntegrityError: when there is no such run or checkpoint, or it is damaged.
  """
  form = FORMATS[kind]
  if out is not None and not out.name.endswith(form.suffix):
    raise errors.ConfigError(
      f'{out.name} is no name of the format {kind}',
      '--out',
      f'let it end in {form.suffix}',
    )
  if out is not None and not out.parent.is_dir():
    raise errors.ResourceError('no such folder', str(out.parent), 'create it')
  # A missing package shows before the model is loaded and traced.
  for package in form.packages:
    extras.load(package, f'--format={kind}', form.remedy)
  found = embedding.load(workdir, checkpoint, model, form.dtype)
  if out is None:
    # Names of models such as client:NAME have characters that paths reserve.
    name = found.name.replace(':', '-').replace('/', '-')
    out = workdir / f'{name}-{found.step}{form.suffix}'
  described = about.describe(found, workdir)
  content = form.encode(found, described)
  difference, names = None, ''
  if form.reader is None:
    names = weight_files.form(found)
  else:
    difference = _check(found, content, form.reader, kind)
  atomic.write_bytes(out, content)
  size, number = len(content), len(found.variables)
  return Written(out, size, described, difference, number, names)


def _check(
  found: embedding.Embedding,
  content: bytes,
  reader: Callable[[Path], Callable[..., np.ndarray]],
  kind: str,
) -> float:
  """Returns the largest difference between a program and the evaluation.

  Raises:
    ConfigError: if it is larger than `TOLERANCE`.
  """
  rng = np.random.default_rng(0)
  shape = found.inputs[embedding.IMAGES].shape[1:]
  images = rng.integers(0, 256, (_IMAGES, *shape), np.uint8)
  kinds = (np.arange(_IMAGES) % 2).astype(np.int32)
  inputs = {embedding.IMAGES: images, embedding.MODALITIES: kinds}
  chosen = [inputs[name] for name in found.inputs]
  # ONNX Runtime computes products in float32, and a GPU in a lower precision by
  # default.
  precision = 'highest' if kind == 'onnx' else None
  with jax.default_matmul_precision(precision):
    expected = found.evaluate(images, kinds)
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, 'program')
    path.write_bytes(content)
    call = reader(path)
    # Two sizes of batches show that the number of images is not fixed.
    rows = [slice(0, 1), slice(1, _IMAGES)]
    got = np.concatenate([call(*(x[r] for x in chosen)) for r in rows])
  difference = float(np.abs(got - expected).max())
  limit = TOLERANCE[found.config.model.dtype] * max(1, np.abs(expected).max())
  # The inverted comparison also refuses NaN.
  if not difference <= limit:
    raise errors.ConfigError(
      f'the program differs from the evaluation by {difference:.2g}',
      f'--format={kind}',
      'use another format, and report it',
    )
  return difference
