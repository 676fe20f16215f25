import tomllib

import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.config import saved_config
from fedreid_jax.sites import app_folder, federated


def test_the_settings_of_a_run_are_read_again_and_restart_it_once(tmp_path):
  config = fr.load_config('dfh:smoke', rounds=5)
  wanted = federated.Wanted(3, round_s=60.0, min_sites=2)
  folder = app_folder.write(config, tmp_path / 'a "run"', wanted, True)
  project = tomllib.loads((folder / 'pyproject.toml').read_text())
  app = project['tool']['flwr']['app']
  path = tmp_path / 'a "run"' / app_folder.FILE
  assert app['config'] == {app_folder.SETTINGS: str(path)}
  assert {path.name for path in folder.iterdir()} == {'pyproject.toml'}
  for restart in (True, False):
    found, sites, again = app_folder.take(path)
    assert saved_config.to_json(found) == saved_config.to_json(config)
    assert (sites, again) == (wanted, restart)


@pytest.mark.parametrize(
  'changes',
  [
    {'data.public': 'park'},
    {'start_from': 'runs/other'},
    {'evaluation.validation': 0.2},
    {'evaluation.batch_stats': 'source'},
  ],
)
def test_a_coordinator_has_no_images_of_the_sites(changes):
  config = fr.load_config('fedpav:smoke', changes)
  (field,) = changes
  with pytest.raises(errors.ConfigError, match='at real sites') as caught:
    federated.check(config)
  assert caught.value.where == field


def test_a_simulation_of_secure_aggregation_is_refused():
  with pytest.raises(errors.ConfigError, match='is simulated only'):
    federated.check(fr.load_config('secagg:smoke'))
