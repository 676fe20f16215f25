"""Initial states of a run from the models of another run.

Wu & Gong (AAAI 2021, table 6) continue training each client alone, from the
model of a finished federation and the client's own head.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import types
from fedreid_jax.core.types import ClientState, Flat, ServerState
from fedreid_jax.data import benchmark_source
from fedreid_jax.training import recorder, run_files, structure


def states(
  setup: Any, server: ServerState, folder: str, targets: Sequence[str]
) -> tuple[ServerState, ClientState]:
  """Returns the states before round 0, from another run's last checkpoint.

  Parameters that are shared now start from the server's model of that run;
  personal parameters start from the model of the client of that name there,
  which consists of the server's and the client's own leaves. The states of
  components are initialised from these models.

  Args:
    setup: `build.Setup` of this run.
    server: its initial state without a warm start.
    folder: work directory of the other run.
    targets: `data.targets` of this run.

  Raises:
    IntegrityError: no checkpoint that verifies, or one of another model.
    ConfigError: the other run has no such client or several server models, the
      client had other identities, or a target was a training domain.
  """
  workdir = Path(folder).expanduser()
  with run_files.checkpoints_of(workdir) as saved:
    shared, personal, groups, host = saved.restore_models(
      saved.find('latest'), personal=True
    )
  structure.check_fits(
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


def _of_server(wanted: Flat, shared: Flat, groups, folder: str) -> Flat:
  """Returns the parameters that are shared now, of the only server model."""
  alone = sorted(wanted.keys() - shared.keys())
  used = np.unique(groups)
  if alone or (wanted and len(used) > 1):
    what = f'{alone[0]} was not shared' if alone else f'{len(used)} models'
    raise errors.ConfigError(
      f'no model of a server to start from: {what}',
      folder,
      "start each client from its own: components 'standalone'",
    )
  return {n: shared[n][used[0]] for n in wanted}


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
      f'{name} has no {missing[0]} in that run',
      folder,
      'start from a run of the same clients and model',
    )
