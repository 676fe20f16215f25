import tomllib

import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.apps.sites import federated
from fedreid_jax.apps.sites.flower import app_folder
from fedreid_jax.config import saved_config


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


@pytest.mark.parametrize(
  'recipe, changes, message',
  [
    ('dp_fedavg', {}, "guarantee of 'dp_fedavg'.*remove 'dp_fedavg'$"),
    ('dpsgd', {}, "guarantee of 'dpsgd'.*remove 'dpsgd'$"),
    ('dfh_dp', {}, "guarantee of 'dpsgd'.*remove 'dpsgd'$"),
    (
      'dfh',
      {'dfh.clip': 1.0, 'dfh.noise': 2.0},
      "guarantee of 'dfh'.*remove 'dfh', or set dfh.noise to 0$",
    ),
  ],
)
def test_sites_could_remove_the_noise_of_a_guarantee(recipe, changes, message):
  config = fr.load_config(f'{recipe}:smoke', changes)
  with pytest.raises(errors.ConfigError, match=message) as caught:
    federated.check(config)
  assert 'at real sites: its noise follows from the seed' in str(caught.value)
  assert caught.value.where == 'components'


def test_noise_without_a_guarantee_is_not_refused():
  changes = {'components': ('fedpav', 'noise')}
  federated.check(fr.load_config('fedpav:smoke', changes))
