"""Embeddings as programs of `jax.export`, lowered for CPU, CUDA and TPU.

A file is a ZIP archive without compression of two members: `program.bin`, the
serialised program, and `about.json`, what `about.describe` returns.
`jax.export.deserialize` reads the program; JAX and flatbuffers are needed,
neither this package nor Flax.
"""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from fedreid_jax.apps.deploy.exchange.embedding import Embedding
from fedreid_jax.core import extras

SUFFIX = '.jax.zip'
PLATFORMS = ('cpu', 'cuda', 'tpu')
PROGRAM, ABOUT = 'program.bin', 'about.json'
# Members of equal content have equal bytes at any time.
_DATE = (1980, 1, 1, 0, 0, 0)


def lowered(embedding: Embedding) -> export.Exported:
  """Returns the embedding lowered for `PLATFORMS`.

  JAX stores the lines of the source of each operation, with absolute paths of
  this machine; they are left out.
  """
  function = jax.jit(lambda *inputs: embedding.call(*inputs))
  before = jax.config.jax_traceback_in_locations_limit  # pyright: ignore
  jax.config.update('jax_traceback_in_locations_limit', 0)
  try:
    return export.export(function, platforms=PLATFORMS)(
      *embedding.inputs.values()
    )
  finally:
    jax.config.update('jax_traceback_in_locations_limit', before)


def encode(embedding: Embedding, about: dict[str, Any]) -> bytes:
  """Returns the content of a file.

  Raises:
    ConfigError: without flatbuffers.
  """
  extras.load('flatbuffers', '--format=jax', extras.command('export'))
  content = io.BytesIO()
  with zipfile.ZipFile(content, 'w') as file:
    for name, member in (
      (ABOUT, json.dumps(about, indent=2).encode()),
      (PROGRAM, bytes(lowered(embedding).serialize())),
    ):
      file.writestr(zipfile.ZipInfo(name, _DATE), member)
  return content.getvalue()


def reader(path: Path) -> Callable[..., np.ndarray]:
  """Returns the function of a file, of arrays on the host."""
  with zipfile.ZipFile(path) as file:
    program = export.deserialize(bytearray(file.read(PROGRAM)))
  call = jax.jit(program.call)
  return lambda *inputs: np.asarray(call(*inputs))
