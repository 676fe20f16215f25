"""Initial states of a run from the models of another run.

Wu & Gong (AAAI 2021, table 6) continue to train each client alone, from the
model of a finished federation and the client's head. A run with other clients
uses that model as pretrained weights: parameters that stay at the clients start
from random values.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedreid_jax import errors
from fedreid_jax.core import trees
from fedreid_jax.core.types import Flat, ServerState
from fedreid_jax.data.benchmark import benchmark_source
from fedreid_jax.data.synthetic import versions
from fedreid_jax.models import tuning
from fedreid_jax.round.client_store import ClientStore
from fedreid_jax.training import build, earlier_data, whole_network
from fedreid_jax.training.files import recorder, run_files

LISTED = 12  # new parameters in a line


def states(
  setup: Any,
  server: ServerState,
  clients: ClientStore,
  folder: str,
  data: Any,
  say: Callable[[str], None],
  frozen: Collection[str] = (),
) -> ServerState:
  """Writes the states before round 0, from another run's last checkpoint.

  Shared parameters start from the server's model of the other run. Personal
  parameters of a client start from the model of the client of this name there,
  which consists of the server's leaves and the client's leaves. If there was no
  such client, or it had another number of identities, they start from the
  server's model where they were shared, and else from new random values. A
  classifier has as many columns as the client with the most identities, so that
  those beyond the client's own are cut or added. Prompts and matrices that the
  other run has not (`tuning.may_be_new`) start as in a run without another one.

  Args:
    frozen: names of the parameters that are constants of the network, which
      `whole_network` takes from that run.

  Raises:
    IntegrityError: no checkpoint verifies, or it is of another model.
    ConfigError: the other run has several server models or none, a client of it
      lacks a parameter, a target was a training domain, or the weights with
      which that run began were trained on this world.
  """
  workdir = Path(folder).expanduser()
  saved = run_files.checkpoints_of(workdir)
  shared, personal, groups, host = saved.restore_models(
    saved.find('latest'), personal=True
  )
  if host['source'] == 'datasets':
    benchmark_source.check_trials(host['sources'], data.targets)
  elif _same_world(host['source'], data.source):
    _check_unseen(host, data, folder)
  _check_weights(workdir, data)
  new = _new(setup.variables, shared, personal)
  if new:
    say(f'new, because {folder} has none: {_listed(new)}')
  known = {n: x for n, x in server.shared.items() if n not in new}
  started = _of_server(known, shared, groups, folder)
  started |= {n: x for n, x in new.items() if n in server.shared}
  described = workdir / run_files.DESCRIBED
  described = recorder.read_object(described, 'clients', fix=earlier_data.FIX)[
    'clients'
  ]
  identities = {client['client']: client['identities'] for client in described}

  def without(leaves: Flat) -> Flat:
    # Matrices that this run has not are in the constants.
    added = {n for n in leaves if tuning.is_added(n)} - setup.variables.keys()
    return {
      n: x for n, x in leaves.items() if n not in frozen and n not in added
    }

  def own(number: int) -> Flat:
    client = setup.federation.clients[number]
    if identities.get(client.name) == client.num_identities:
      k = host['clients'].index(client.name)
      leaves = {n: x[groups[k]] for n, x in shared.items()}
      leaves = new | without(leaves | personal.get(k, {}))
      _check_whole(leaves, setup.variables, client.name, folder)
      leaves |= _of_columns(leaves, setup.variables, client.num_identities)
    else:
      known = without(_known_to_all(server.shared, shared, groups))
      leaves = new | started | known
      _say_new(client.name, setup.variables.keys() - leaves.keys(), say)
    whole_network.check_fits(leaves, setup.variables)
    return leaves

  # The states of components are initialised from the models of the other run.
  started_server, _ = setup.rounds.init(setup.variables | started)
  setup.rounds.start_from(clients, own)
  return started_server


def _same_world(trained: str, tested: str) -> bool:
  """Whether two sources are one version of the synthetic world."""
  version = versions.of_file(trained)
  return version in versions.VERSIONS and version == versions.resolve(tested)


def _check_unseen(host: dict[str, Any], data: Any, folder: str):
  """Refuses a target on which the other run was trained."""
  if data.allow_overlap or host.get('world_seed') != data.world_seed:
    return
  names = [
    {spec.partition(':')[0] for spec in specs}
    for specs in (host['sources'], data.targets)
  ]
  # A run without `data.sources` was trained on all domains of its world.
  both = sorted(names[0] & names[1] if names[0] else names[1])
  if both:
    raise errors.ConfigError(
      f'{both[0]} of world {data.world_seed} trained the models of {folder}',
      'data.targets',
      'choose another domain or data.world_seed, or set data.allow_overlap',
    )


def _check_weights(workdir: Path, data: Any):
  """Refuses a world on which weights of that run were trained."""
  from fedreid_jax.models import weights

  source = versions.resolve(data.source)
  # Models of a run with `start_from` come from those of an earlier run, whose
  # weights count as well.
  seen: set[Path] = set()
  while (path := workdir / run_files.CONFIG).is_file():
    # Two runs that were restarted may name each other.
    if path.resolve() in seen:
      return
    seen.add(path.resolve())
    given = recorder.read_object(path, 'model', fix=earlier_data.FIX)
    name = given['model'].get('pretrained')
    if name in weights.NAMES:
      weights.check_unseen(name, source, data.world_seed)
    if not given.get('start_from'):
      return
    workdir = Path(given['start_from']).expanduser()


def _new(variables: Flat, shared: Flat, personal: Mapping[int, Flat]) -> Flat:
  """The parameters that no model of the other run has, and may lack."""
  there = {*shared, *(personal[min(personal)] if personal else ())}
  return {
    n: x
    for n, x in variables.items()
    if tuning.may_be_new(n) and n not in there
  }


def _listed(names: Collection[str]) -> str:
  shown = sorted(names)[:LISTED]
  more = len(names) - len(shown)
  return ', '.join(shown) + (f' and {more} more' if more else '')


def _of_server(wanted: Flat, shared: Flat, groups, folder: str) -> Flat:
  """The parameters that are shared now, from the one server model."""
  alone = sorted(wanted.keys() - shared.keys())
  used = np.unique(groups)
  if alone or (wanted and len(used) > 1):
    what = f'{alone[0]} was not shared' if alone else f'{len(used)} models'
    raise errors.ConfigError(
      f'no model of a server to start from: {what}',
      folder,
      'start each client from its own model, with a method that shares none',
    )
  return {n: shared[n][used[0]] for n in wanted}


def _known_to_all(wanted: Flat, shared: Flat, groups) -> Flat:
  """Personal parameters of this run that one model of it shared."""
  used = np.unique(groups)
  if len(used) > 1:
    return {}
  leaves = {n: x[used[0]] for n, x in shared.items() if n not in wanted}
  # The columns of that run's classifier are other persons.
  _, rest = trees.split(leaves, build.CLASSIFIER)
  return rest


def _of_columns(leaves: Flat, wanted: Flat, num: int) -> Flat:
  """Classifiers with the columns of this run, `num` of which are identities."""

  def fitted(name: str, leaf: np.ndarray) -> np.ndarray:
    found = np.array(wanted[name])
    if found.shape == leaf.shape or found.shape[:-1] != leaf.shape[:-1]:
      return leaf
    # Other columns are never used.
    found[..., :num] = leaf[..., :num]
    return found

  classifiers, _ = trees.split(leaves, build.CLASSIFIER)
  return {n: fitted(n, x) for n, x in classifiers.items() if n in wanted}


def _say_new(name: str, new: Iterable[str], say: Callable[[str], None]):
  folders = sorted({leaf.rpartition('/')[0] for leaf in new})
  if folders:
    say(f'{name} starts with new {", ".join(folders)}')


def _check_whole(leaves: Flat, variables: Flat, name: str, folder: str):
  missing = sorted(variables.keys() - leaves.keys())
  if missing:
    raise errors.ConfigError(
      f'{name} has no {missing[0]} in that run',
      folder,
      'start from a run of the same clients and model',
    )
