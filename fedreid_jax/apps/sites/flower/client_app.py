"""The program that Flower starts at a site for every message.

It hands the bytes of the message to the resident worker of the site, whose
socket the configuration of the SuperNode names, and returns those of the reply.
"""

from typing import Any

from fedreid_jax import errors
from fedreid_jax.apps.sites.flower import extra, local_socket

RECORD, DATA = 'fedreid', 'data'  # of a message of Flower
SOCKET = 'socket'  # in --node-config of the SuperNode

_flower = extra.flower('flwr.app')
app = extra.flower('flwr.clientapp').ClientApp()


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
  """Returns bytes as the content of a message of Flower."""
  return _flower.RecordDict({RECORD: _flower.ConfigRecord({DATA: data})})
