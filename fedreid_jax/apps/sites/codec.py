"""Messages between the coordinator and a site, as bytes.

A message is a safetensors file: arrays by their paths in a tree, and a header
with the kind of the message and its fields as JSON. Reading it executes
nothing. A receiver compares names, shapes and types of the arrays with those of
the tree that it expects.
"""

import json
from typing import Any, NamedTuple

import jax
import numpy as np
import safetensors
from safetensors import numpy as safetensors_numpy

from fedreid_jax import errors
from fedreid_jax.core.types import Tree
from fedreid_jax.training.files import structure

PROTOCOL = 1  # version of the messages; a receiver refuses any other
HELLO, PREPARE, TRAIN, FAILED = 'hello', 'prepare', 'train', 'failed'
# Reply of a worker that has not received HELLO since it started. Its images or
# its recipe may have changed, so that the coordinator has to check them again.
STRANGER = 'stranger'


class Message(NamedTuple):
  """A message from or to a site.

  Attributes:
    kind: HELLO, PREPARE or TRAIN; a reply may also be FAILED or STRANGER.
    fields: values that JSON can represent.
    arrays: leaves of a tree by their paths, see `structure.by_path`.
  """

  kind: str
  fields: dict[str, Any]
  arrays: dict[str, np.ndarray]


def pack(kind: str, fields: dict[str, Any], tree: Tree = ()) -> bytes:
  """Returns a message as bytes.

  Args:
    kind: of the message.
    fields: values that JSON can represent.
    tree: arrays on the host or on a device, of types that NumPy has.
  """
  arrays = {
    # safetensors writes the bytes of an array in the order of memory.
    name: np.array(leaf, order='C')
    for name, leaf in structure.named(jax.device_get(tree)).items()
  }
  header = {'protocol': PROTOCOL, 'kind': kind, 'fields': fields}
  return safetensors_numpy.save(arrays, {'fedreid': json.dumps(header)})


def unpack(data: bytes, where: str) -> Message:
  """Returns a message.

  Args:
    data: of `pack`.
    where: sender of the message, for errors.

  Raises:
    IntegrityError: when the bytes are not a message of this protocol.
  """
  try:
    arrays = safetensors_numpy.load(data)
    header = json.loads(metadata(data)['fedreid'])
    found = Message(str(header['kind']), dict(header['fields']), arrays)
    protocol = header['protocol']
  except (
    safetensors.SafetensorError,
    KeyError,
    # JSON of another form, and JSON that is nested too deeply for its parser.
    TypeError,
    ValueError,
    RecursionError,
  ) as error:
    raise errors.IntegrityError(
      f'a message that cannot be read: {type(error).__name__} {error}',
      where,
      'install the same version of fedreid_jax at all sites and the server',
    ) from error
  if protocol != PROTOCOL:
    raise errors.IntegrityError(
      f'messages of protocol {protocol}, not {PROTOCOL}',
      where,
      'install the same version of fedreid_jax at all sites and the server',
    )
  return found


def metadata(data: bytes) -> dict[str, str]:
  """Returns the texts in the header of a safetensors file, by name."""
  # `load` of safetensors omits them. A file begins with the size of its header,
  # eight bytes in little-endian order, and the header, which is JSON.
  size = int.from_bytes(data[:8], 'little')
  return json.loads(data[8 : 8 + size])['__metadata__']


def fit(arrays: dict[str, np.ndarray], like: Tree, where: str) -> Any:
  """Returns arrays as a tree after comparing them with the expected tree.

  Args:
    arrays: of a message or a file.
    like: tree of arrays or of their shapes.
    where: sender of the arrays, for errors.

  Raises:
    IntegrityError: naming the first leaves that are missing or not expected, or
      whose shape or type differs.
  """
  wanted = {name: _form(leaf) for name, leaf in structure.by_path(like).items()}
  found = {name: _form(leaf) for name, leaf in arrays.items()}
  differ = [
    f'{name} is {found.get(name, "absent")}, not {wanted.get(name, "expected")}'
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
