"""The package in examples/plugin, beside its checkout and installed."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy
import toy_run

import fedreid_jax as fr
from fedreid_jax.algorithms import snr
from fedreid_jax.config import validation
from fedreid_jax.data import federation
from fedreid_jax.models import networks
from fedreid_jax.models.forward import ForwardCtx
from fedreid_jax.training import contract

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / 'examples/plugin'
PACKAGE = 'fedreid_plugin_example'


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
  monkeypatch.syspath_prepend(PLUGIN)


def config(**fields):
  return fr.load_config(
    f'{PLUGIN}/recipe.py', {'rounds': 1, 'execution.devices': 1}, **fields
  )


def test_the_median_of_the_members_of_each_group():
  from fedreid_plugin_example import median

  values = jnp.array([[1.0, -2.0], [9.0, jnp.nan], [3.0, 0.0], [2.0, 8.0]])
  members = jnp.array(
    [[True, False, True, True], [True, False, False, True], [False] * 4]
  )
  found = median.median(values, members)
  np.testing.assert_array_equal(found[:2], [[2.0, 0.0], [1.5, 3.0]])
  assert not np.isfinite(found[2]).any()


@pytest.mark.parametrize('name', ['median', 'centre_loss'])
def test_a_component_imports_only_the_interface_of_a_method(name):
  tree = ast.parse((PLUGIN / PACKAGE / f'{name}.py').read_text())
  modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
  modules |= {
    alias.name
    for n in ast.walk(tree)
    if isinstance(n, ast.Import)
    for alias in n.names
  }
  own = {m for m in modules if m.startswith('fedreid_jax')}
  assert own == {'fedreid_jax.method'}


def test_the_interface_of_a_method_is_what_it_lists():
  import fedreid_jax.method as method

  assert [n for n in method.__all__ if not hasattr(method, n)] == []
  assert len(method.__all__) == len({*method.__all__})


def test_median_equals_that_of_numpy():
  from fedreid_plugin_example import median

  for num in (1, 2, 5, 6):
    values = np.random.default_rng(num).normal(size=(num, 3, 2))
    found = median.median(jnp.float32(values), jnp.ones((1, num), bool))
    np.testing.assert_allclose(found[0], np.median(values, 0), rtol=1e-6)


def test_the_server_has_the_median_and_an_empty_group_keeps_its_model():
  from types import SimpleNamespace

  from fedreid_plugin_example import median

  ctx = SimpleNamespace(
    uploaded={'w': jnp.array([[1.0], [100.0], [2.0]])},
    members=jnp.array([[True, True, True], [False, False, False]]),
  )
  models = {'w': jnp.array([[34.0], [7.0]])}
  changed = median.make().aggregation.combine(models, ctx)
  np.testing.assert_array_equal(changed['w'], [[2.0], [7.0]])


def test_the_centre_loss_and_its_centres():
  from fedreid_plugin_example import centre_loss

  embedding = jnp.array([[2.0, 0.0], [4.0, 0.0], [0.0, 3.0], [jnp.nan, 9.0]])
  labels, valid = jnp.array([0, 0, 1, 2]), jnp.array([True] * 3 + [False])
  centres = jnp.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
  # Squared distances are 1, 9 and 4; the padded row has no effect.
  value = centre_loss.distance(embedding, labels, valid, centres)
  assert value == pytest.approx(14 / 3 / 2)
  # Centre 0: 1 - 0.5 ((1 - 2) + (1 - 4)) / 3; centre 1: 1 - 0.5 (1 - 3) / 2.
  moved = centre_loss.moved(embedding, labels, valid, centres, 0.5)
  expected = [[1 + 2 / 3, 0.0], [0.0, 1.5], [5.0, 5.0]]
  np.testing.assert_allclose(moved, expected, rtol=1e-6)
  made = centre_loss.make()
  kernel = {'params/classifier/kernel': jnp.zeros((2, 3))}
  assert made.client.init(jax.random.key(0), kernel).shape == (3, 2)


def test_the_source_draws_images_that_can_be_learned():
  from fedreid_plugin_example import source

  data = config().data
  options = source.Options(noise=0.0)
  found = source.load(data, True, options)
  (domain, *_), (target,) = found.domains, found.targets
  images = domain.images()
  assert images.shape == (48, 16, 8, 3) and images.dtype == np.uint8
  np.testing.assert_array_equal(images[0], images[1])
  assert (images[0] != images[6]).any()
  assert len(target.trials[0].query) == len(target.trials[0].gallery) == 24
  assert source.load(data, False, options).domains == ()
  assert found.digest != source.load(data, True).digest
  data.targets = ('north',)
  with pytest.raises(fr.errors.DataError, match='trained on and tested on'):
    source.load(data, True, options)


def test_a_network_has_its_options_and_no_stages():
  model = validation.validate(config()).model
  network = networks.build(model, 3, {'channels': 4, 'blocks': 3})
  variables = jax.eval_shape(
    lambda: network.init(
      jax.random.key(0), jnp.zeros((2, 16, 8, 3)), ForwardCtx(False)
    )
  )
  assert variables['params']['classifier']['kernel'].shape == (16, 3)
  with pytest.raises(fr.errors.ConfigError, match='snr cannot change'):
    networks.build(model, 3, None, [snr.make().network])


def test_the_bias_of_features_that_are_the_camera():
  from fedreid_plugin_example import camera_bias

  chosen = validation.validate(config())
  domain = toy.toy_images('mall', 12, 3)
  target = federation.split_target(domain, np.arange(12) < 4)
  features = np.float32(domain.cameras[:, None])
  model = toy_run.model_of(chosen.evaluation, lambda _: features)
  found = camera_bias.evaluate(model, target)
  same = domain.cameras[:4, None] == domain.cameras[4:]
  assert found == {
    'same_camera': 100.0,
    'same_camera_in_gallery': pytest.approx(100 * same.mean()),
  }
  every = camera_bias.evaluate(model, target, camera_bias.Options(nearest=8))
  assert every['same_camera'] == pytest.approx(100 * same.mean())


def test_a_module_of_another_kind_is_refused():
  model = validation.validate(config()).model
  model = replace(model, name=f'{PACKAGE}.source')
  with pytest.raises(fr.errors.ConfigError, match="no function 'make'"):
    networks.build(model, 3)
  model = replace(model, name=f'{PACKAGE}.nothing')
  with pytest.raises(fr.errors.ConfigError, match='no module'):
    networks.build(model, 3)


@pytest.mark.slow
def test_a_training_with_all_plug_ins(tmp_path):
  chosen = config(
    network={'channels': 4}, source={'persons': 4}, camera_bias={'nearest': 2}
  )
  results = fr.train(chosen, workdir=tmp_path)
  assert json.loads((tmp_path / 'results.json').read_text()) == results
  assert results['rounds'] == 1
  entry = results['evaluation'][-1]
  assert (entry['target'], entry['queries'], entry['gallery']) == (
    *('west', 12),
    12,
  )
  assert 0 <= entry['metrics']['same_camera'] <= 100
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  (train,) = [e for e in map(json.loads, lines) if e['event'] == 'train']
  assert train['centre_loss_distance'] > 0
  saved = json.loads((tmp_path / 'config.json').read_text())
  assert saved['network']['channels'] == 4 and saved['source']['persons'] == 4
  # A run is read again without its recipe.
  assert fr.evaluate(tmp_path, {'source.noise': 0.3})[0]['queries'] == 12
  assert fr.load(tmp_path).config.options['centre_loss'].rate == 0.5


@pytest.mark.slow
def test_a_component_keeps_the_contract():
  findings = [*contract.check(f'{PACKAGE}.centre_loss')]
  assert len(findings) == 8 and not any(one.problem for one in findings)


BAD = """
from fedreid_jax.method.component import ClientHooks, Component
from fedreid_jax.models.forward import ForwardCtx


def fail(variables, state, ctx):
  raise ValueError('no loss today')


def make():
  return Component('NAME', client=ClientHooks(loss=fail))
"""


@pytest.mark.parametrize(
  'name, problem, number',
  [
    ('other', "named 'other', not 'bad_", 2),
    ('', 'ValueError: no loss today', 3),
  ],
)
def test_a_broken_component_fails_the_check(
  tmp_path, monkeypatch, name, problem, number
):
  module = f'bad_{name or "loss"}'
  folder = tmp_path / f'rules_{name}'
  folder.mkdir()
  (folder / '__init__.py').write_text('')
  (folder / f'{module}.py').write_text(BAD.replace('NAME', name or module))
  monkeypatch.syspath_prepend(tmp_path)
  findings = [*contract.check(f'{folder.name}.{module}')]
  assert len(findings) == number
  assert problem in findings[-1].problem and findings[-1].serious


def test_differences_are_found():
  tree = {'a': np.ones(2, np.float32), 'b': np.arange(3)}
  near = {'a': tree['a'] + np.float32(1e-6), 'b': np.arange(3)}
  assert not contract.difference(tree, tree)
  assert contract.difference(tree, near) == 'a differs'
  assert not contract.difference(tree, near, 1e-5)
  assert 'structure' in contract.difference(tree, {'a': tree['a']})


@pytest.mark.slow
def test_the_command_prints_a_line_for_each_check():
  def command(*arguments):
    return subprocess.run(
      [sys.executable, '-m', 'fedreid_jax.cli.program', 'check-component']
      + [*arguments],
      env=os.environ | {'PYTHONPATH': f'{PLUGIN}{os.pathsep}{ROOT}'},
      capture_output=True,
      text=True,
      timeout=240,
    )

  done = command(f'{PACKAGE}.median')
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert len(lines) == 8 and all(line.startswith('ok ') for line in lines)
  done = command(f'{PACKAGE}.nothing')
  assert done.returncode == 2 and 'no module' in done.stderr


@pytest.mark.slow
def test_the_installed_package_is_found_by_entry_points(tmp_path):
  target = tmp_path / 'installed'
  subprocess.run(
    [sys.executable, '-m', 'pip', 'install', '--quiet', '--no-deps']
    + [f'--target={target}', str(PLUGIN)],
    check=True,
  )
  run = subprocess.run(
    [sys.executable, '-m', 'fedreid_jax.cli.program', 'train', 'fedpav:smoke']
    + ['--config.components=("fedpav", "median", "centre_loss")']
    + ['--config.model.name=strided', '--config.data.source=patterns']
    + ['--config.evaluation.extra=("cameras", "roc")']
    + ['--config.strided.channels=4', '--config.rounds=1']
    + [f'--workdir={tmp_path / "run"}'],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': f'{target}{os.pathsep}{ROOT}'},
    capture_output=True,
    text=True,
    timeout=240,
  )
  assert run.returncode == 0, run.stderr
  saved = json.loads((tmp_path / 'run/config.json').read_text())
  assert saved['strided']['channels'] == 4 and saved['patterns']['persons'] == 8
  results = json.loads((tmp_path / 'run/results.json').read_text())
  assert results['rounds'] == 1
  measured = results['evaluation'][-1]['metrics']
  assert {'mAP', 'same_camera', 'EER', 'TPR_at_FPR_1e-4'} <= {*measured}
