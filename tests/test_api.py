"""The public API: what it promises, its documentation, and its manners."""

import doctest
import inspect
import operator
import os
import re
import signal
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import fedreid_jax as fr
from fedreid_jax.data import cache
from fedreid_jax.training.files import recorder
from fedreid_jax.training.processes import process

ROOT = Path(__file__).parents[1]
TINY = {
  'model.features': (4, 8),
  'data.identities': 4,
  'data.target_identities': 4,
  'execution.devices': 1,
}


def python(code: str, **environment) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-c', code],
    env=os.environ | {'PYTHONPATH': str(ROOT)} | environment,
    capture_output=True,
    text=True,
    check=False,
  )


def readme_blocks() -> list[str]:
  text = (ROOT / 'README.md').read_text()
  return re.findall(r'^```python\n(.*?)^```', text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope='module')
def desk(tmp_path_factory):
  """A folder of photos in which the examples of the README were run."""
  folder = tmp_path_factory.mktemp('desk')
  rng = np.random.default_rng(0)
  for name in ('a', 'b', 'c', 'query'):
    pixels = rng.integers(0, 256, (48, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f'{name}.jpg')
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    names: dict = {}
    for block in readme_blocks():
      exec(block, names)
  return folder, names


@pytest.mark.slow
def test_the_readme_runs(desk):
  folder, names = desk
  assert names['results']['rounds'] == 5
  assert names['vectors'].shape == (3, 32)
  assert names['indices'].shape == names['distances'].shape == (1, 2)
  assert set(names['labels'].ravel()) <= {'ann', 'bob'}
  assert (folder / 'runs/first/evaluation-5-mall.json').exists()


@pytest.mark.slow
@pytest.mark.parametrize('name', fr.__all__)
def test_examples_in_docstrings(desk, monkeypatch, name):
  monkeypatch.chdir(desk[0])
  thing = getattr(fr, name)
  tests = doctest.DocTestFinder().find(thing, name, globs={})
  runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
  for test in tests:
    runner.run(test)
  assert runner.tries and not runner.failures


def test_every_public_method_has_an_example_or_is_in_one():
  for thing in (fr.Snapshot, fr.Gallery):
    for name, method in inspect.getmembers(thing, inspect.isfunction):
      if not name.startswith('_'):
        shown = f'{thing.__doc__}{method.__doc__}'
        assert f'.{name}(' in shown


def test_the_import_is_light_and_silent():
  found = python(
    'import sys, fedreid_jax as fr\n'
    'heavy = {"jax", "flax", "optax", "orbax", "PIL", "jaxtyping"}\n'
    'assert not heavy & set(sys.modules), heavy & set(sys.modules)\n'
  )
  assert (found.returncode, found.stdout, found.stderr) == (0, '', '')


def test_names():
  assert list(fr.__all__) == sorted(fr.__all__)
  assert {*fr.__all__, '__version__'} <= set(dir(fr))
  with pytest.raises(AttributeError, match="no attribute 'trian'"):
    operator.attrgetter('trian')(fr)


@pytest.mark.slow
def test_a_run_prints_nothing_unless_asked(tmp_path, capfd, caplog):
  config = fr.load_config('fedpav:smoke', TINY, rounds=1)
  fr.train(config, tmp_path / 'run')
  fr.train(config, tmp_path / 'run')  # resumed
  fr.load(tmp_path / 'run')
  fr.evaluate(tmp_path / 'run')
  assert capfd.readouterr() == ('', '')
  assert not [r for r in caplog.records if r.levelname != 'INFO']
  fr.train(config, str(tmp_path / 'run'), verbose=True)
  fr.evaluate(tmp_path / 'run', verbose=True)
  assert capfd.readouterr().out.count('unseen targets') == 2


def test_what_cannot_be_run_is_refused_before_anything_is_made(tmp_path):
  config = fr.load_config('fedpav:smoke')
  config.fraction = 2.0
  with pytest.raises(fr.errors.ConfigError, match='fraction'):
    fr.train(config, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  for call in (fr.load, fr.evaluate):
    with pytest.raises(fr.errors.IntegrityError, match='config.json'):
      call(tmp_path / 'run')


@pytest.mark.filterwarnings('ignore:Error .*persistent compilation cache')
@pytest.mark.parametrize(
  'field, value',
  [
    ('model.name', 'resnet20'),
    ('model.features', (4, 0)),
    ('augment.copies', 'all'),
  ],
)
def test_every_function_refuses_a_value_out_of_range(tmp_path, field, value):
  """Networks and transforms do not check their fields again."""
  values = {'model.name': 'convnet', field: value}
  with pytest.raises(fr.errors.ConfigError, match=field):
    fr.load_config('fedpav:smoke', values)
  with pytest.raises(fr.errors.ConfigError, match=field):
    fr.Simulation(pytest.fail, [], [], fields=values)
  config = fr.load_config('fedpav:smoke')
  config.update_from_flattened_dict({field: value})
  with pytest.raises(fr.errors.ConfigError, match=field):
    fr.train(config, tmp_path / 'run')
  assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_two_threads_train_as_one_after_another(tmp_path):
  def train(seed, folder):
    config = fr.load_config('fedpav:smoke', TINY, seed=seed)
    fr.train(config, tmp_path / folder)
    return tmp_path / folder

  before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
  with futures.ThreadPoolExecutor(2) as pool:
    names = ('thread0', 'thread1')
    together = list(pool.map(train, (0, 1), names))
  a, b = together[1], train(1, 'alone')
  a_results, b_results = (
    recorder.read_object(folder / 'results.json') for folder in (a, b)
  )
  assert a_results['evaluation'] == b_results['evaluation']
  a_model, b_model = fr.load(a), fr.load(b)
  assert a_model.step == b_model.step == 2
  for name, value in a_model.variables.items():
    np.testing.assert_array_equal(value, b_model.variables[name])
  assert fr.load(together[0]).step == 2
  assert before == [
    signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)
  ]


@pytest.mark.slow
def test_a_work_directory_is_of_one_thread_at_a_time(tmp_path):
  config = fr.load_config('fedpav:smoke', TINY, rounds=1)
  with futures.ThreadPoolExecutor(2) as pool:
    runs = [pool.submit(fr.train, config, tmp_path) for _ in range(2)]
    found = [run.exception() for run in runs]
  assert [type(e) for e in found if e] in ([], [fr.errors.LockedError])


@pytest.mark.parametrize('by', ['nobody', 'environment', 'config'])
def test_the_cache_of_the_caller_is_kept(monkeypatch, tmp_path, by):
  changed = {}
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
  if by == 'environment':
    monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')
  monkeypatch.setattr(cache, 'cache_dir', lambda: tmp_path)
  chosen = 'own' if by == 'config' else None

  class Config:
    jax_compilation_cache_dir = chosen
    update = staticmethod(changed.__setitem__)

  monkeypatch.setattr(process.jax, 'config', Config)
  process.use_cache()
  expected = {
    'jax_persistent_cache_min_compile_time_secs': 0,
    'jax_compilation_cache_dir': str(tmp_path / 'xla'),
  }
  assert changed == (expected if by == 'nobody' else {})


@pytest.mark.slow
def test_the_example_finds_persons(tmp_path):
  environment = {
    'JAX_COMPILATION_CACHE_DIR': str(jax.config.jax_compilation_cache_dir),
    'PYTHONPATH': str(ROOT),
  }
  found = subprocess.run(
    [sys.executable, ROOT / 'examples/train_and_search.py'],
    cwd=tmp_path,
    env=os.environ | environment,
    capture_output=True,
    text=True,
    check=False,
  )
  assert found.returncode == 0, found.stderr
  assert 'person' in found.stdout and found.stderr == ''


@pytest.mark.slow
def test_the_examples_of_tracking_run(tmp_path, monkeypatch, capsys):
  text = (ROOT / 'docs' / 'tracking.md').read_text()
  monkeypatch.chdir(tmp_path)
  names = {}
  for block in re.findall(r'^```python\n(.*?)^```', text, re.DOTALL | re.M):
    exec(block, names)
  said = capsys.readouterr().out
  assert names['results']['rounds'] == 2 and 'saved ' in said
  assert re.search(r'^2 evaluation/mall/global/mAP \d', said, re.M)
