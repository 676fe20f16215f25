"""Messages between the coordinator and a site, and the shapes of their arrays.

A message is a safetensors file: arrays by their paths in a tree, and a header
with the kind of the message and its fields as JSON. Reading it executes
nothing. A receiver compares names, shapes and types of the arrays with those of
the tree that it expects, which it finds by tracing the method.
"""

import json
import math
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.core.types import Tree
from fedreid_jax.training.files import client_files

PROTOCOL = 1  # version of the messages; a receiver refuses any other
HELLO, PREPARE, TRAIN, FAILED = 'hello', 'prepare', 'train', 'failed'
# Reply of a worker that has not received HELLO since it started. Its images or
# its recipe may have changed, so that the coordinator has to check them again.
STRANGER = 'stranger'
SCALARS = 'num_examples', 'num_steps', 'finite'  # of `types.Upload`
LONGEST = 500  # letters of a text of another program that are printed
FIELDS = 10**5  # most bytes of the fields of a reply
INITIAL = -1  # number of a site's state before its first message

# JSON of another form, and JSON that is nested too deeply for its parser, are
# errors of Python.
UNREADABLE = (
  safetensors.SafetensorError, KeyError, TypeError, ValueError, RecursionError,
)  # fmt: skip
_FIX = 'install the same version of fedreid_jax at all sites and the server'


class Message(NamedTuple):
  """A message from or to a site."""

  kind: str  # HELLO, PREPARE or TRAIN; a reply may also be FAILED or STRANGER
  fields: dict[str, Any]  # values that JSON can represent
  # Leaves of a tree by their paths, see `client_files.by_path`.
  arrays: dict[str, np.ndarray]


def pack(kind: str, fields: dict[str, Any], tree: Tree = ()) -> bytes:
  """A message as bytes, see `Message`; arrays may be on a device."""
  arrays = {
    # safetensors writes the bytes of an array in the order of memory.
    name: np.array(leaf, order='C')
    for name, leaf in client_files.named(jax.device_get(tree)).items()
  }
  header = {'protocol': PROTOCOL, 'kind': kind, 'fields': fields}
  return safetensors_numpy.save(arrays, {'fedreid': json.dumps(header)})


def unpack(data: bytes, where: str) -> Message:
  """Reads a message from the sender `where`, or raises IntegrityError."""
  try:
    if type(data) is not bytes:
      raise TypeError(f'{type(data).__name__} in place of bytes')
    arrays = safetensors_numpy.load(data)
    header = json.loads(metadata(data)['fedreid'])
    found = Message(str(header['kind']), dict(header['fields']), arrays)
    protocol = header['protocol']
  except UNREADABLE as error:
    raise errors.IntegrityError(
      f'a message that cannot be read: {type(error).__name__} '
      f'{printable(str(error))}',
      where,
      _FIX,
    ) from error
  if protocol != PROTOCOL:
    raise errors.IntegrityError(
      f'messages of protocol {printable(repr(protocol))}, not {PROTOCOL}',
      where,
      _FIX,
    )
  return found


def largest(like: Tree) -> int:
  """The bytes that no message with arrays like these exceeds."""
  leaves = client_files.by_path(like)
  arrays = sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves.values())
  # Of each array the header has the name, the type, the shape and two offsets.
  header = sum(6 * len(name) + 200 for name in leaves)
  return arrays + header + FIELDS


def printable(text: str) -> str:
  """A text of a stranger as one line of at most `LONGEST` letters."""
  # A lone surrogate cannot be printed, and control characters move the cursor.
  kept = ''.join(x if x.isprintable() else '?' for x in text[:LONGEST])
  return kept + ('...' if len(text) > LONGEST else '')


def metadata(data: bytes) -> dict[str, str]:
  """The texts in the header of a safetensors file, by name."""
  # `load` of safetensors omits them. A file begins with the size of its header,
  # eight bytes in little-endian order, and the header, which is JSON.
  size = int.from_bytes(data[:8], 'little')
  return json.loads(data[8 : 8 + size])['__metadata__']


def fit(arrays: dict[str, np.ndarray], like: Tree, where: str) -> Any:
  """Returns arrays as a tree like `like`, or raises IntegrityError."""
  wanted = {
    name: _form(leaf) for name, leaf in client_files.by_path(like).items()
  }
  found = {name: _form(leaf) for name, leaf in arrays.items()}
  differ = [
    f'{printable(name)} is {found.get(name, "absent")}, not '
    f'{wanted.get(name, "expected")}'
    for name in sorted(wanted.keys() | found.keys())
    if wanted.get(name) != found.get(name)
  ]
  if differ:
    raise errors.IntegrityError(
      'arrays of another model: ' + '; '.join(differ[:5]),
      where,
      'use the same configuration at all sites and the server',
    )
  return jax.tree.unflatten(
    jax.tree.structure(like), [arrays[name] for name in wanted]
  )


def _form(leaf: Any) -> str:
  return f'{np.dtype(leaf.dtype)}{list(leaf.shape)}'
