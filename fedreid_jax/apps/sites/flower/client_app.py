"""The program that Flower starts at a site for every message.

It sends the bytes of the message to the socket of the site's resident worker,
which the configuration of the SuperNode names, and returns the bytes of the
reply.
"""

from typing import Any

from fedreid_jax import errors
from fedreid_jax.apps.sites.flower import extra, local_socket

RECORD, DATA = 'fedreid', 'data'  # where a message of Flower has our bytes
SOCKET = 'socket'  # in --node-config of the SuperNode

_flower = extra.flower('flwr.app')
# Flower looks for this name, see `app_folder`.
app = extra.flower('flwr.clientapp').ClientApp()


# The worker tells messages apart by itself; `server_app` sends both types.
@app.query()
@app.train()
def answer(message: Any, context: Any) -> Any:
  """Returns the worker's reply to a message of Flower.

  Args:
    message: `flwr.app.Message`.
    context: `flwr.app.Context`.
  """
  if SOCKET not in context.node_config:
    raise errors.ConfigError(
      'no socket', 'flower-supernode', """give --node-config='socket="PATH"'"""
    )
  path = str(context.node_config[SOCKET])
  reply = local_socket.ask(path, message.content[RECORD][DATA])
  return _flower.Message(content(reply), reply_to=message)


def content(data: bytes) -> Any:
  """Returns the content of a message of Flower with these bytes."""
  return _flower.RecordDict({RECORD: _flower.ConfigRecord({DATA: data})})
