"""Trains a run whose clients are real sites, from the folder of `flwr run`.

The run has the same files as a simulation.
"""

import functools
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from fedreid_jax import errors
from fedreid_jax.apps.sites import refused, remote, terms
from fedreid_jax.apps.sites.terms import Channel, Facts, Members
from fedreid_jax.config import load as config_files
from fedreid_jax.config import validation
from fedreid_jax.config.configuration import Config
from fedreid_jax.core import options, trees
from fedreid_jax.data import load, sampling
from fedreid_jax.data.federation import Federation
from fedreid_jax.round import cohort, compose
from fedreid_jax.round.cohorts import Cohorts
from fedreid_jax.round.rounds import Rounds
from fedreid_jax.training import build, engine, loop, source_stats
from fedreid_jax.training.files import atomic, recorder
from fedreid_jax.version import __version__

FOLDER, FILE = 'flower', 'sites.json'  # in the work directory
KEYS = 'site-keys.json'  # digests of the keys of the sites, by name
SETTINGS = 'settings'  # key of the path in the run configuration of Flower

# The folder has no code: both programs are modules of this package, which the
# server and each site have installed.
_PROJECT = """[project]
name = "fedreid-sites"
version = "{version}"
description = "Federated person re-identification at real sites"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedreid"

[tool.flwr.app.components]
serverapp = "fedreid_jax.apps.sites.flower_apps:server"
clientapp = "fedreid_jax.apps.sites.flower_apps:client"

[tool.flwr.app.config]
{key} = {settings}
"""


class Wanted(NamedTuple):
  """Number of sites of a run, and limits on waiting for them."""

  sites: int  # number of sites; the run begins when all of them are connected
  wait_s: float = 600.0  # seconds to wait for that
  round_s: float = 3600.0  # seconds that sites have for a round
  min_sites: int = 1  # number of updates without which a round does not count


def write(config: Config, workdir: Path, wanted: Wanted, restart: bool) -> Path:
  """Writes the settings of a run and its folder for `flwr run`.

  With `restart` the run deletes an earlier one in the work directory.
  """
  workdir = workdir.absolute()
  folder = workdir / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  settings = {
    'config': config_files.to_json(config),
    'wanted': wanted._asdict(),
    'restart': restart,
  }
  recorder.write_json(workdir / FILE, settings)
  text = _PROJECT.format(
    version=__version__,
    key=SETTINGS,
    # TOML reads a string of JSON, except for the surrogate pairs of its ASCII
    # form.
    settings=json.dumps(str(workdir / FILE), ensure_ascii=False),
  )
  atomic.write_text(folder / 'pyproject.toml', text)
  return folder


def take(path: Path) -> tuple[Any, Wanted, bool]:
  """Reads (configuration, wanted sites, restart), or raises IntegrityError."""
  found = recorder.read_object(path, 'config', 'wanted', 'restart')
  config = config_files.from_json(found['config'], (), str(path))
  # A restart is done once: the next `flwr run` of the same folder resumes.
  recorder.write_json(path, found | {'restart': False})
  return (
    validation.validate(config),
    Wanted(**found['wanted']),
    bool(found['restart']),
  )


def train(
  config: Config,
  workdir: str | os.PathLike[str],
  channel: Channel,
  wanted: Wanted,
  restart: bool = False,
  say: Callable[[str], None] = print,
) -> dict[str, Any]:
  """Trains, or resumes, a run at real sites and returns its results.

  The configuration is that of the coordinator, whose data fields name the
  images of the targets. The directory has the files of `loop.train`; `restart`
  deletes an earlier run in it. `say` prints a line about a site.

  Raises:
    FedReIDError: as `loop.train`, and for sites that cannot take part.
  """

  def make(config: Config, root: bytes | None) -> build.Setup:
    # `check` refuses the methods whose random numbers follow from a secret.
    del root
    check(config)
    # Kept for every later start of the run, also by another `flwr run`.
    path = Path(workdir) / KEYS
    known = {}
    if path.exists() and not restart:
      known = recorder.read_object(path)['keys']
    members = Members(channel, terms.agreed(config), say, known)
    found = members.gather(wanted.sites, wanted.wait_s)
    recorder.write_sealed(path, {'keys': members.owners})
    options = build.arguments(config, config.data.source)
    tests = load.load(config.data, clients=False, options=options)
    return assemble(config, tests, members, found, wanted)

  return loop.run_rounds(make, config, workdir, restart, verbose=True)


def check(config: Config) -> None:
  """Raises ConfigError for fields that need sites' images or a simulation."""
  for wrong, what, field, fix in (
    (config.data.public, 'public images', 'data.public', 'leave it empty'),
    (
      config.data.without,
      'images that the coordinator leaves out',
      'data.without',
      'leave it empty, and let the site leave them out',
    ),
    (config.start_from, 'a warm start', 'start_from', 'leave it empty'),
    (
      config.evaluation.validation,
      'tests on images of the clients',
      'evaluation.validation',
      'set it to 0',
    ),
    (
      config.evaluation.batch_stats in source_stats.MEASURED,
      'moments of images of the clients',
      'evaluation.batch_stats',
      "set it to 'running'",
    ),
    (
      not options.is_default(config.availability),
      'simulated time',
      'availability',
      'keep its defaults',
    ),
  ):
    if wrong:
      raise errors.ConfigError(f'{what} at real sites', field, fix)
  refused.check(config)


def assemble(
  config: Config,
  tests: Federation,
  members: Members,
  sites: Sequence[Facts],
  wanted: Wanted,
) -> build.Setup:
  """Builds the parts of a run with sites, sorted by name, and test images."""
  given = terms.make(config, sites)
  setting = remote.Setting(
    members,
    sites,
    given,
    terms.run_name(config, sites),
    wanted.round_s,
    wanted.min_sites,
    # A resumed run begins after the newest checkpoint, or the one before.
    horizon=2 * config.checkpoint_every + 1,
  )

  clients = tuple(
    site.placeholder()._replace(num_identities=one.identities)
    for site, one in zip(sites, given, strict=True)
  )
  # The digest stands for images that are not here: a run does not resume with
  # other sites. Versions may change.
  known = json.dumps([site._replace(versions={}) for site in sites])
  digest = hashlib.sha256(f'{tests.digest} {known}'.encode()).hexdigest()
  here = tests._replace(
    clients=clients, digest=digest, sources=tuple(site.name for site in sites)
  )
  made = build.parts(config, here)
  _check_model(made)
  # Only the shape of a plan is known here; batches are planned at the sites.
  places = sampling.SAMPLERS[config.local.sampler](config.local).places
  plans = engine.Plans(
    cohort.Planner(_no_plan, lambda _: given[0].steps),
    (given[0].steps, places * config.local.batch),
    given[0].masked,
  )
  algorithm, _, options = made.method(config, plans, here=0)
  cohorts = Cohorts(len(clients), options)
  shape, mesh = here.image_shape, made.mesh
  runner = remote.Remote(algorithm, setting, shape, options, cohorts.size, mesh)
  _, personal = trees.split(made.variables, algorithm.shared)
  known = algorithm._replace(
    init_client=functools.partial(remote.initial, personal)
  )
  rounds = Rounds(known, clients, runner, cohorts, shape, options, mesh)
  return build.complete(config, made, rounds)


def _check_model(made: build.Parts) -> None:
  """Refuses a server that has no whole model, so that it could not test it."""
  shared, personal = trees.split(
    made.variables, compose.shared_leaves(made.components)
  )
  # Tests of retrieval do not use the classifier, so it alone may be missing.
  _, lacking = trees.split(personal, build.CLASSIFIER)
  if lacking or not shared:
    raise errors.ConfigError(
      f'{next(iter(lacking), "every parameter")} stays at the sites, so the '
      'server has no model to test',
      'components',
      'share all parameters but the classifier',
    )


def _no_plan(round_: int, client: int) -> NoReturn:
  raise errors.InternalError(
    'the batches of a site are not planned here',
    f'client {client}, round {round_}',
    errors.REPORT,
  )
