"""What all processes of a run must have alike, and what they decide together.

Processes that differ in a field train a model each believes to be its own, and
end with wrong numbers. So each publishes its configuration, versions and code,
later its images, as text at the coordination service; no device takes part and
nothing is compiled before all of it agrees.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedreid_jax import errors
from fedreid_jax.config import recipes
from fedreid_jax.training import peers, recorder

SHOWN = 3  # fields of a message
_calls = itertools.count()


def require(what: str, facts: Callable[[], Mapping[str, Any]]) -> None:
  """Refuses to go on unless all processes hold the same facts.

  Args:
    what: the facts are of, for messages.
    facts: returns anything JSON, by name; not called by a process alone.

  Raises:
    ConfigError: in every process, naming the facts that differ.
    ResourceError: when a process does not publish its own in time.
  """
  if not peers.joined():
    return
  client, process, processes = peers.client()
  prefix = f'fedreid/{next(_calls)}/'
  wait_ms = peers.rendezvous_s() * 1000
  client.key_value_set(
    f'{prefix}{process}', json.dumps(facts(), sort_keys=True)
  )
  told = []
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
    told.append(json.loads(text))
  differ = differences(told)
  if differ:
    more = f' and {len(differ) - SHOWN} more' if len(differ) > SHOWN else ''
    peers.leave()  # all of them refuse: none is to take another for lost
    raise errors.ConfigError(
      f'processes differ in {what}: ' + '; '.join(differ[:SHOWN]) + more,
      peers.FLAG,
      'start all processes with the same flags, images and code',
    )


def differences(told: list[dict[str, Any]]) -> list[str]:
  """Returns the facts that are not alike, with the first two values each.

  Args:
    told: the facts of every process.
  """
  lines = []
  for name in sorted(set().union(*told)):
    values = [facts.get(name) for facts in told]
    other = next((k for k, v in enumerate(values) if v != values[0]), None)
    if other is not None:
      lines.append(
        f'{name} is {values[0]!r} in process 0, {values[other]!r} in {other}'
      )
  return lines


def code() -> dict[str, str]:
  """Returns versions of the packages and the SHA-256 of every source file."""
  found = {
    f'version of {name}': metadata.version(name) for name in recorder.PACKAGES
  }
  package = Path(__file__).parents[1]
  for root in (package, recipes.folder()):
    for path in sorted(root.rglob('*.py')):
      digest = hashlib.sha256(path.read_bytes()).hexdigest()
      found[f'{root.name}/{path.relative_to(root).as_posix()}'] = digest[:16]
  return found


def connect(mesh: Mesh) -> None:
  """Runs a collective over the devices while all processes are together.

  Gloo gives its first collective over some devices 30 seconds from the first
  process to the last, too few where one compiles and another does not. Later
  collectives over the same devices wait.

  Args:
    mesh: of the run.
  """
  if peers.joined():
    largest(0)
    whole = NamedSharding(mesh, P())
    split = NamedSharding(mesh, P(mesh.axis_names))
    rows = np.zeros(mesh.devices.size, np.int32)
    placed = jax.make_array_from_callback(rows.shape, split, rows.__getitem__)
    jax.jit(lambda x: x, out_shardings=whole)(placed).block_until_ready()


def largest(number: int) -> int:
  """Returns the largest of the numbers that the processes hold, in each."""
  if not peers.joined():
    return number
  return int(np.max(multihost_utils.process_allgather(np.int32(number))))
