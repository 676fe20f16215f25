"""A run whose models begin where those of another run ended.

Wu & Gong (AAAI 2021, table 6) train each client on, alone, from the model of a
finished federation and the client's own head.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import ClientState, Flat, ServerState
from fedreid_jax.data import benchmark_source
from fedreid_jax.training import checkpoint, recorder, run_files


def states(
  setup: Any, server: ServerState, folder: str, targets: Sequence[str]
) -> tuple[ServerState, ClientState]:
  """Returns the states before round 0, from another run's last checkpoint.

  What travels now starts from the server's model there; what stays at a client
  starts from the model the client of that name had there: the server's and the
  client's own leaves. What methods remember begins with these models.

  Args:
    setup: `assemble.Setup` of this run.
    server: its state as it would start otherwise.
    folder: work directory of the other run.
    targets: `data.targets` of this run.

  Raises:
    IntegrityError: no checkpoint that verifies, or one of another model.
    ConfigError: the other run has no such client, no one model of a server, the
      client had other identities, or there is a target it learned from.
  """
  workdir = Path(folder).expanduser()
  with run_files.checkpoints_of(workdir) as saved:
    shared, personal, groups, host = saved.restore_models(
      saved.find('latest'), personal=True
    )
  checkpoint.check_fits(
    {n: x[0] for n, x in (shared | personal).items()}, setup.variables
  )
  if host['source'] == 'datasets':
    benchmark_source.check_trials(host['sources'], targets)
  started = _of_server(server.shared, shared, groups, folder)
  described = workdir / run_files.DESCRIBED
  described = recorder.read_object(described, 'clients')['clients']
  identities = {client['client']: client['identities'] for client in described}
  own = []
  for client in setup.federation.clients:
    leaves = started
    if client.name in identities:
      k = host['clients'].index(client.name)
      leaves = {n: x[groups[k]] for n, x in shared.items()}
      leaves |= {n: x[k] for n, x in personal.items()}
      _check_identities(client, identities[client.name], folder)
    _check_whole(leaves, setup.variables, client.name, folder)
    own.append(leaves)
  return setup.executor.init(setup.variables | started, own=own)


def _of_server(travels: Flat, shared: Flat, groups, folder: str) -> Flat:
  """Returns the leaves that travel now, of the server's only model there."""
  alone = sorted(travels.keys() - shared.keys())
  used = np.unique(groups)
  if alone or (travels and len(used) > 1):
    what = f'{alone[0]} did not travel' if alone else f'{len(used)} models'
    raise errors.ConfigError(
      f'no model of a server to start from: {what}',
      folder,
      "start each client from its own: components 'standalone'",
    )
  return {n: shared[n][used[0]] for n in travels}


def _check_identities(client: types.ClientData, before: int, folder: str):
  if client.num_identities != before:
    raise errors.ConfigError(
      f'{client.name} has {client.num_identities} identities, had {before}',
      folder,
      'train on the data of that run',
    )


def _check_whole(leaves: Flat, variables: Flat, name: str, folder: str):
  missing = sorted(variables.keys() - leaves.keys())
  if missing:
    raise errors.ConfigError(
      f'{name} has no {missing[0]} there',
      folder,
      'start from a run of the same clients and model',
    )
