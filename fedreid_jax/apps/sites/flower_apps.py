"""The programs that Flower starts at a site and at the server.

At a site, Flower starts a process for every message. It sends the bytes of the
message to the socket of the site's resident worker, which the configuration of
the SuperNode names, and returns the bytes of the reply. At the server the
program reads the settings that `fedreid coordinate` has written, and trains.
"""

# Imports of JAX or NumPy here would delay every message.

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedreid_jax import errors
from fedreid_jax.apps.sites import local_socket
from fedreid_jax.core import plugins

RECORD, DATA = 'fedreid', 'data'  # where a message of Flower has our bytes
SOCKET = 'socket'  # in --node-config of the SuperNode
POLL_S = 1.0  # seconds between two requests for replies


def _load(name: str) -> ModuleType:
  return plugins.load_extra(
    name, 'real sites', plugins.install_command('sites')
  )


_load('flwr')  # so that an error names the package, not one of its modules
_flower = _load('flwr.app')
# Flower looks for these names, see `federated.write`.
client = _load('flwr.clientapp').ClientApp()
server = _load('flwr.serverapp').ServerApp()


# The worker tells messages apart by itself; `GridChannel` sends both types.
@client.query()
@client.train()
def answer(message: Any, context: Any) -> Any:
  """The worker's reply to a `flwr.app.Message`."""
  if SOCKET not in context.node_config:
    raise errors.ConfigError(
      'no socket', 'flower-supernode', """give --node-config='socket="PATH"'"""
    )
  path = str(context.node_config[SOCKET])
  reply = local_socket.ask(path, message.content[RECORD][DATA])
  return _flower.Message(_content(reply), reply_to=message)


def _content(data: bytes) -> Any:
  return _flower.RecordDict({RECORD: _flower.ConfigRecord({DATA: data})})


class GridChannel:
  """A `terms.Channel` to the SuperNodes of a run."""

  def __init__(self, grid: Any):
    self._grid = grid

  def nodes(self) -> Mapping[int, str]:
    """The numbers of the SuperNodes that are connected, with their keys."""
    found = sorted(self._grid.get_nodes(), key=lambda node: node.node_id)
    return {
      node.node_id: hashlib.sha256(node.public_key).hexdigest()
      for node in found
    }

  def ask(
    self, kind: str, messages: Iterable[tuple[int, bytes]], timeout: float
  ) -> Iterator[tuple[int, bytes]]:
    """Sends (node, message) and yields (node, reply) as replies come.

    This program holds one message or reply at a time; the SuperLink keeps the
    others on its disk.
    """
    waiting = [
      name
      for node, data in messages
      for name in self._grid.push_messages(
        [_message(kind, node, data, timeout)]
      )
      if name  # None is a message that the SuperLink refused
    ]
    end = time.monotonic() + timeout
    while waiting:
      for name in tuple(waiting):
        for reply in self._grid.pull_messages([name]):
          # The SuperLink may add messages that nobody has asked for.
          if reply.metadata.reply_to_message_id != name or name not in waiting:
            continue
          waiting.remove(name)
          node = reply.metadata.src_node_id
          if reply.has_error():
            reason = _printable(str(reply.error.reason))
            print(f'node {node}: {reason}')
          else:
            yield node, _data(reply)
      if waiting and time.monotonic() > end:
        return
      time.sleep(POLL_S if waiting else 0)


def _message(kind: str, node: int, data: bytes, timeout: float) -> Any:
  from fedreid_jax.apps.sites import codec

  return _flower.Message(
    _content(data),
    dst_node_id=node,
    # Flower has fixed types; `codec` has the kind of a message in its bytes.
    message_type='query' if kind == codec.HELLO else 'train',
    # A message that was not delivered in time is not delivered later. Replies
    # are read until then: `ask` ends before, also while it adds another one.
    ttl=2 * timeout,
  )


def _printable(text: str) -> str:
  from fedreid_jax.apps.sites import codec

  return codec.printable(text)


def _data(reply: Any) -> Any:
  """The bytes of a reply, or what stands in their place."""
  # A site may send another record. `codec` refuses what is no message, so that
  # only this site is left out.
  try:
    return reply.content[RECORD][DATA]
  except (KeyError, TypeError, ValueError):
    return b''


@server.main()
def main(grid: Any, context: Any) -> None:
  """Trains, or resumes, the run whose settings the run configuration names."""
  from fedreid_jax.apps.sites import federated
  from fedreid_jax.training.processes import process

  process.prepare_jax(os.cpu_count() or 1)
  path = Path(str(context.run_config[federated.SETTINGS]))
  config, wanted, restart = federated.take(path)
  try:
    federated.train(config, path.parent, GridChannel(grid), wanted, restart)
  except errors.FedReIDError as error:
    # Flower shows this output in `flwr run --stream`; the exception ends the
    # run.
    print(error.line(), flush=True)
    raise
