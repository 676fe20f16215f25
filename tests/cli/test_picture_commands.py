"""`launchers.visualize` and `launchers.invert` as a user meets them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import toy
from PIL import Image

from fedreid_jax import errors
from fedreid_jax.training import loaded_run, loop

ROOT = Path(__file__).parents[2]


def launch(door, *flags):
  env = dict(os.environ) | {'JAX_NUM_CPU_DEVICES': '1'}
  env['JAX_COMPILATION_CACHE_DIR'] = str(jax.config.jax_compilation_cache_dir)
  env['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0.2'
  done = subprocess.run(
    [sys.executable, '-m', f'launchers.{door}', *map(str, flags)],
    cwd=ROOT,
    env=env,
    capture_output=True,
    text=True,
    timeout=240,
  )
  return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """(configuration, work directory) of a run of four identities a domain."""
  config = toy.toy_config()
  config.name, config.components = 'dfh', ('fedpav', 'dfh')
  config.dfh.space = 'b'  # the toy network has a neck
  config.data.sources, config.data.targets = ('plaza', 'campus'), ('mall',)
  config.data.height, config.data.width = 16, 8
  config.data.identities = config.data.target_identities = 4
  config.data.shots = config.data.cameras = 2
  config.execution.devices = 1
  config.rounds = config.evaluation.every = 1
  workdir = tmp_path_factory.mktemp('run')
  loop.train(config, workdir)
  return config, workdir


@pytest.mark.slow
def test_a_run_is_loaded_as_it_was_left(finished):
  config, workdir = finished
  run = loaded_run.load(config, workdir)
  assert (run.name, run.step) == ('global', 1)
  assert run.states['dfh'].shape == (2, 4, 8)
  assert [c.name for c in run.federation.clients] == ['campus', 'plaza']
  before = loaded_run.load(config, workdir, '0')
  kernel = 'params/backbone/conv1/kernel'
  assert not np.array_equal(run.variables[kernel], before.variables[kernel])


@pytest.mark.parametrize(
  'load, message',
  [
    (lambda run: run.target('moon'), 'no target .moon.*there are mall'),
    (lambda run: run.client('mall'), 'no client .mall.*campus, plaza'),
    (lambda run: run(which='new'), 'unknown checkpoint'),
    (lambda run: run(which='7'), 'no checkpoint 7'),
    (lambda run: run(name='client:plaza'), 'there are global'),
  ],
)
def test_what_a_run_does_not_have(finished, load, message):
  class Run:
    def __call__(self, **what):
      return loaded_run.load(*finished, **what)

    def __getattr__(self, name):
      return getattr(self(), name)

  with pytest.raises(errors.FedReIDError, match=message):
    load(Run())


@pytest.mark.slow
def test_pictures_of_two_runs(finished, tmp_path):
  _, workdir = finished
  out = tmp_path / 'both.png'
  code, text, err = launch(
    'visualize', f'--workdir={workdir},{workdir}', '--what=cmc', f'--out={out}'
  )
  assert code == 0, err
  assert text.strip() == str(out)
  with Image.open(out) as image:
    assert image.size[0] > 500


@pytest.mark.slow
def test_inversion_leaves_a_picture_and_numbers(finished):
  _, workdir = finished
  code, text, err = launch(
    'invert',
    f'--workdir={workdir}',
    '--source=plaza',
    '--identities=2',
    '--steps=4,4',
  )
  assert code == 0, err
  with Image.open(workdir / 'inversion.png') as image:
    assert image.size[0] > 500
  found = json.loads((workdir / 'inversion.json').read_text())
  assert found['source'] == 'plaza' and found['identities'] == 2
  assert found['judge']['other_model'] is False
  assert found['rank1']['chance'] == 25
  assert found['losses']['after']['loss'] < found['losses']['before']['loss']
  assert f'restored {found["rank1"]["restored"]:.2f}' in text


@pytest.mark.parametrize(
  'door, flags, code, message',
  [
    ('visualize', ['--workdir={run},{run}', '--what=tsne'], 2, 'shows one'),
    ('visualize', ['--workdir={bare}', '--what=cmc'], 4, 'no checkpoint'),
    ('invert', ['--workdir={run}', '--judge={none}'], 4, 'no readable'),
    ('invert', ['--workdir={run}', '--steps=5'], 2, 'HALF,FULL'),
  ],
)
def test_one_line_and_a_code(finished, tmp_path, door, flags, code, message):
  _, workdir = finished
  bare = tmp_path / 'bare'  # a run that was interrupted before its first save
  bare.mkdir()
  (bare / 'config.json').write_bytes((workdir / 'config.json').read_bytes())
  places = {'run': workdir, 'bare': bare, 'none': tmp_path / 'none'}
  status, _, err = launch(door, *(flag.format(**places) for flag in flags))
  lines = err.strip().splitlines()
  assert status == code, err
  assert len(lines) == 1 and lines[0].startswith(f'error[{code}]: '), err
  assert message in lines[0]
