"""Agreement of the processes of a run on inputs and decisions.

Each process publishes its configuration, versions and code, and later the
digests of its images, as text at the coordination service. No device is used
and nothing is compiled before all processes agree.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax import errors
from fedreid_jax.config import recipes, schema
from fedreid_jax.core import plugins
from fedreid_jax.training.files import recorder
from fedreid_jax.training.processes import peers

SHOWN = 3  # differing fields in a message
# Processes make the same calls in the same order, so that the number of a call
# is its name at the coordination service.
_calls = itertools.count()


def require(what: str, inputs: Callable[[], Mapping[str, Any]]) -> None:
  """Refuses to continue unless all processes have the same inputs.

  Args:
    what: name of the inputs, for messages.
    inputs: returns JSON values by name; not called in a run of one process.

  Raises:
    ConfigError: in every process, naming the inputs that differ.
    ResourceError: when a process does not publish its inputs in time.
  """
  if not peers.joined():
    return
  client, process, processes = peers.client()
  prefix = f'fedreid/{next(_calls)}/'
  wait_ms = peers.rendezvous_s() * 1000
  client.key_value_set(
    f'{prefix}{process}', json.dumps(inputs(), sort_keys=True)
  )
  published = []
  for other in range(processes):
    try:
      text = client.blocking_key_value_get(f'{prefix}{other}', wait_ms)
    except RuntimeError as error:
      if 'DEADLINE_EXCEEDED' not in str(error):
        raise  # another process was lost
      raise errors.ResourceError(
        f'process {other} of {processes} had no {what} within '
        f'{peers.rendezvous_s()} s',
        peers.FLAG,
        'see its own message, or raise --rendezvous_s',
      ) from error
    published.append(json.loads(text))
  differ = differences(published)
  if differ:
    more = f' and {len(differ) - SHOWN} more' if len(differ) > SHOWN else ''
    peers.leave()  # all of them refuse, so none must count as lost
    raise errors.ConfigError(
      f'processes differ in {what}: ' + '; '.join(differ[:SHOWN]) + more,
      peers.FLAG,
      'start all processes with the same flags, images and code',
    )


def of_first(make: Callable[[], bytes]) -> bytes:
  """Returns a value of the first process, in every process of the run.

  The value is in the coordinator's memory until all processes have read it.

  Args:
    make: returns the value; called in the first process only.
  """
  if not peers.joined():
    return make()
  client, process, _ = peers.client()
  name = f'fedreid/{next(_calls)}'
  if process == 0:
    client.key_value_set(name, make().hex())
  wait_ms = peers.rendezvous_s() * 1000
  value = bytes.fromhex(client.blocking_key_value_get(name, wait_ms))
  # The value may be a secret: it is deleted as soon as all have read it.
  client.wait_at_barrier(f'{name}/read', wait_ms)
  if process == 0:
    client.key_value_delete(name)
  return value


def differences(published: list[dict[str, Any]]) -> list[str]:
  """Returns a line for each input that differs, with two of its values."""
  lines = []
  for name in sorted(set().union(*published)):
    values = [inputs.get(name) for inputs in published]
    other = next((k for k, v in enumerate(values) if v != values[0]), None)
    if other is not None:
      lines.append(
        f'{name} is {values[0]!r} in process 0, {values[other]!r} in {other}'
      )
  return lines


def code(named: Sequence[schema.Named] = ()) -> dict[str, str]:
  """Returns versions of the packages and the SHA-256 of every source file.

  Args:
    named: plug-ins, whose packages are read as well.
  """
  found = {
    f'version of {name}': metadata.version(name) for name in recorder.PACKAGES
  }
  roots = [Path(__file__).parents[2], recipes.folder()]
  for plugin, name in named:
    roots += plugins.folders(plugins.module_of(name, plugin, ()))
  for root in roots:
    for path in [root] if root.is_file() else sorted(root.rglob('*.py')):
      digest = hashlib.sha256(path.read_bytes()).hexdigest()
      found[path.relative_to(root.parent).as_posix()] = digest[:16]
  return found


def connect(mesh: Mesh) -> None:
  """Runs a collective over the devices while all processes are together.

  Later collectives over the same devices wait for all processes.
  """
  # Gloo's first collective over some devices fails 30 seconds after the first
  # process has begun it, which is too soon where only one process compiles.
  if peers.joined():
    largest(0)
    whole = NamedSharding(mesh, P())
    split = NamedSharding(mesh, P(mesh.axis_names))
    rows = np.zeros(mesh.devices.size, np.int32)
    placed = jax.make_array_from_callback(rows.shape, split, rows.__getitem__)
    jax.jit(lambda x: x, out_shardings=whole)(placed).block_until_ready()


def largest(number: int) -> int:
  """Returns the largest number of all processes, in each of them."""
  if not peers.joined():
    return number
  return int(np.max(multihost_utils.process_allgather(np.int32(number))))
