"""The folder that `flwr run` sends to the server, and the settings of a run."""

import json
from pathlib import Path
from typing import Any

import fedreid_jax
from fedreid_jax.apps.sites.federated import Wanted
from fedreid_jax.config import saved_config, validation
from fedreid_jax.training.files import atomic, recorder

FOLDER, FILE = 'flower', 'sites.json'  # in the work directory
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
serverapp = "fedreid_jax.apps.sites.flower.server_app:app"
clientapp = "fedreid_jax.apps.sites.flower.client_app:app"

[tool.flwr.app.config]
{key} = {settings}
"""


def write(config: Any, workdir: Path, wanted: Wanted, restart: bool) -> Path:
  """Writes the settings of a run and its folder for `flwr run`.

  Args:
    config: of the coordinator.
    workdir: of the run.
    wanted: the sites of the run.
    restart: whether to delete an earlier run in the work directory.

  Returns:
    The folder.
  """
  workdir = workdir.absolute()
  folder = workdir / FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  settings = {
    'config': saved_config.to_json(config),
    'wanted': wanted._asdict(),
    'restart': restart,
  }
  recorder.write_json(workdir / FILE, settings)
  text = _PROJECT.format(
    version=fedreid_jax.__version__,
    key=SETTINGS,
    # TOML reads a string of JSON, except for the surrogate pairs of its ASCII
    # form.
    settings=json.dumps(str(workdir / FILE), ensure_ascii=False),
  )
  atomic.write_text(folder / 'pyproject.toml', text)
  return folder


def take(path: Path) -> tuple[Any, Wanted, bool]:
  """Returns (configuration, wanted sites, whether to restart) of a run.

  Raises:
    IntegrityError: if the file is damaged.
  """
  found = recorder.read_object(path, 'config', 'wanted', 'restart')
  config = saved_config.from_json(found['config'], (), str(path))
  # A restart is done once: the next `flwr run` of the same folder resumes.
  recorder.write_json(path, found | {'restart': False})
  return (
    validation.validate(config),
    Wanted(**found['wanted']),
    bool(found['restart']),
  )
