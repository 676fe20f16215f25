"""The program that Flower starts at the server for a run.

It reads the settings that `fedreid coordinate` has written, and trains.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedreid_jax import errors
from fedreid_jax.apps.sites import codec
from fedreid_jax.apps.sites.flower import app_folder, client_app, extra

_flower = extra.flower('flwr.app')
app = extra.flower('flwr.serverapp').ServerApp()


class GridChannel:
  """A `members.Channel` to the SuperNodes of a run."""

  def __init__(self, grid: Any):
    """Keeps the grid, `flwr.serverapp.Grid`."""
    self._grid = grid

  def nodes(self) -> Sequence[int]:
    """Returns the numbers of the SuperNodes that are connected."""
    return sorted(self._grid.get_node_ids())

  def ask(
    self, kind: str, messages: Mapping[int, bytes], timeout: float
  ) -> Mapping[int, bytes]:
    """Sends messages and returns the replies that came in time, by node.

    Args:
      kind: of the messages, see `codec`.
      messages: by node.
      timeout: in seconds.
    """
    sent = [
      _flower.Message(
        client_app.content(data),
        dst_node_id=node,
        # Flower has fixed types; `codec` has the kind of a message in its
        # bytes.
        message_type='query' if kind == codec.HELLO else 'train',
        # A message that was not delivered in time is not delivered later.
        ttl=timeout,
      )
      for node, data in messages.items()
    ]
    found: dict[int, bytes] = {}
    for reply in self._grid.send_and_receive(sent, timeout=timeout):
      if reply.has_error():
        print(f'node {reply.metadata.src_node_id}: {reply.error.reason}')
        continue
      record = reply.content[client_app.RECORD]
      found[reply.metadata.src_node_id] = record[client_app.DATA]
    return found


@app.main()
def main(grid: Any, context: Any) -> None:
  """Trains, or resumes, the run of a settings file.

  Args:
    grid: `flwr.serverapp.Grid`.
    context: `flwr.app.Context`; its run configuration names the file.
  """
  from fedreid_jax.apps.sites import federated
  from fedreid_jax.training.processes import process

  process.prepare_jax(os.cpu_count() or 1)
  path = Path(str(context.run_config[app_folder.SETTINGS]))
  config, wanted, restart = app_folder.take(path)
  try:
    federated.train(config, path.parent, GridChannel(grid), wanted, restart)
  except errors.FedReIDError as error:
    # Flower shows this output in `flwr run --stream`; the exception ends the
    # run.
    print(error.line(), flush=True)
    raise
