"""Embeddings as programs of `jax.export`, lowered for CPU, CUDA and TPU.

A file is an uncompressed ZIP archive with two members: `program.bin`, the
serialised program, and `about.json`, the result of `about.describe`.
`jax.export.deserialize` reads the program. It needs JAX and flatbuffers, but
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
# With a fixed date equal programs have equal files.
_DATE = (1980, 1, 1, 0, 0, 0)


def lowered(embedding: Embedding) -> export.Exported:
  """Returns the embedding lowered for `PLATFORMS`."""
  function = jax.jit(lambda *inputs: embedding.call(*inputs))
  # Without the limit, JAX stores the source line of each operation with
  # absolute paths of this machine.
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
  """Returns the program of a file as a function of arrays on the host."""
  with zipfile.ZipFile(path) as file:
    program = export.deserialize(bytearray(file.read(PROGRAM)))
  call = jax.jit(program.call)
  return lambda *inputs: np.asarray(call(*inputs))
