"""The wheel in a folder whose own packages have the names of the checkout's."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]
TINY = 'smoke,rounds=1,model.features=(4,8),data.identities=4'

pytestmark = pytest.mark.slow


def pip(*arguments):
  subprocess.run([sys.executable, '-m', 'pip', *arguments], check=True)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory) -> Path:
  folder = tmp_path_factory.mktemp('wheel')
  pip('wheel', '--quiet', '--no-deps', f'--wheel-dir={folder}', str(ROOT))
  (path,) = folder.glob('*.whl')
  return path


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory) -> Path:
  folder = tmp_path_factory.mktemp('installed')
  pip('install', '--quiet', '--no-deps', f'--target={folder}', str(wheel))
  return folder


@pytest.fixture
def project(tmp_path) -> Path:
  """Somebody else's project with packages `configs` and `launchers`."""
  folder = tmp_path / 'project'
  for package in ('configs', 'launchers'):
    (folder / package).mkdir(parents=True)
    (folder / package / '__init__.py').write_text('')
  for file in ('configs/dfh.py', 'launchers/main.py'):
    (folder / file).write_text('raise RuntimeError("not this file")\n')
  return folder


def run(project, installed, *arguments):
  env = dict(os.environ) | {
    'PYTHONPATH': str(installed),
    'JAX_NUM_CPU_DEVICES': '1',
    'JAX_COMPILATION_CACHE_DIR': jax.config.jax_compilation_cache_dir,
  }
  return subprocess.run(
    [sys.executable, *arguments],
    cwd=project,
    env=env,
    capture_output=True,
    text=True,
    timeout=240,
  )


def test_a_wheel_installs_one_package_with_recipes_types_and_licence(wheel):
  names = zipfile.ZipFile(wheel).namelist()
  info = next(n for n in names if n.endswith('/METADATA')).partition('/')[0]
  assert {name.partition('/')[0] for name in names} == {'fedreid_jax', info}
  assert f'{info}/licenses/LICENSE' in names
  recipes = {path.name for path in (ROOT / 'configs').glob('*.py')}
  assert {
    'fedreid_jax/py.typed',
    *(f'fedreid_jax/recipes/{name}' for name in recipes),
  } <= set(names)


def test_an_installed_package_is_imported_beside_other_configs(
  project, installed
):
  script = (
    'import fedreid_jax, configs; from fedreid_jax.config import recipes; '
    'print(fedreid_jax.__file__, configs.__file__, recipes.find("dfh"))'
  )
  done = run(project, installed, '-c', script)
  assert done.returncode == 0, done.stderr
  package = installed / 'fedreid_jax'
  assert done.stdout.split() == [
    str(package / '__init__.py'),
    str(project / 'configs' / '__init__.py'),
    str(package / 'recipes' / 'dfh.py'),
  ]


def test_an_installed_program_trains_a_recipe_beside_other_configs(
  project, installed
):
  done = run(
    project,
    installed,
    '-m',
    'fedreid_jax.cli.program',
    'train',
    f'dfh:{TINY}',
    '--workdir=run',
  )
  assert done.returncode == 0, done.stderr
  results = json.loads((project / 'run' / 'results.json').read_text())
  assert results['rounds'] == 1 and results['config'] == 'dfh'
