import json

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.training import build, loop, run_evaluation

METHODS = {
  'fedsgd': ('fedavg',),
  'fedavg': ('fedavg',),
  'fedatt': ('fedavg', 'fedatt'),
  'fedreid': ('fedavg', 'uniform', 'local_expert'),
  'centralised': ('fedavg',),
}


@pytest.mark.parametrize('preset', ('synthetic', 'smoke', 'paper'))
@pytest.mark.parametrize('method', METHODS)
def test_every_method_with_every_preset_is_valid(method, preset):
  config = validation.validate(
    recipes.recipe('cifar', f'method={method},{preset}')
  )
  assert config.name == f'cifar_{method}'
  assert config.components == METHODS[method]
  assert config.local.epochs == (1 if method == 'fedsgd' else 5)
  alone = method == 'centralised'
  assert config.data.client_split == ('centralised' if alone else 'iid')
  assert config.optim.reset_each_round != alone


def test_the_published_setting_and_what_it_leaves_open():
  config = recipes.recipe('cifar', 'paper,method=fedreid,fraction=0.5')
  assert config.fraction == 0.5 and config.model.name == 'resnet32'
  assert config.components == ('fedavg', 'uniform', 'local_expert')
  assert (config.rounds, config.local.batch, config.data.num_clients) == (
    100,
    32,
    4,
  )
  assert config.optim.lr == 0.1 and config.optim.milestones == (40, 80)
  assert config.optim.nesterov and config.optim.momentum == 0.9
  assert config.optim.weight_decay == 5e-4 and config.optim.gamma == 0.1
  assert (config.augment.pad, config.augment.flip) == (4, 0.5)


def test_arguments_there_are_not():
  with pytest.raises(errors.ConfigError, match="unknown method 'fedprox'"):
    recipes.recipe('cifar', 'smoke,method=fedprox')


@pytest.mark.parametrize(
  'pairs, message',
  [
    ('data.source=folder', 'a folder has no test images'),
    ('data.labels=max', 'numbers classes differently'),
    ('data.num_clients=0', 'out of range'),
    ('data.concentration=0.0', 'out of range'),
    ('data.task=ranking', 'unknown choice'),
    ('evaluation.ensemble=("median",)', 'unknown choice'),
  ],
)
def test_settings_that_cannot_be_classified(pairs, message):
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(recipes.recipe('cifar', f'smoke,{pairs}'))


@pytest.fixture
def tiny():
  config = recipes.recipe(
    'cifar',
    'smoke,model.features=(4,8),data.identities=3,data.cameras=2,'
    'data.client_split=dirichlet,data.num_clients=3,local.epochs=1,'
    'data.height=16,data.width=8,evaluation.every=1,execution.devices=1',
  )
  return validation.validate(config)


@pytest.mark.slow
def test_a_run_reports_accuracy_and_is_judged_by_it(tiny, tmp_path, capsys):
  results = loop.train(tiny, tmp_path, verbose=True)
  entries = results['evaluation']
  assert [e['round'] for e in entries] == [0, 1, 2]
  for entry in entries:
    assert entry['metrics'].keys() == {'accuracy'}
    # 3 persons, 2 cameras, 2 later shots.
    assert (entry['queries'], entry['gallery']) == (12, 0)
    right = entry['metrics']['accuracy'] * 12 / 100
    assert right == pytest.approx(round(right))
  kinds = {e['kind'] for e in results['summary']}
  assert kinds == {'last', 'best_three', 'best'}
  printed = capsys.readouterr().out
  assert 'unseen images, %' in printed and 'distance' not in printed
  clients = json.loads((tmp_path / 'run.json').read_text())['clients']
  assert sum(c['images'] for c in clients) == 3 * 2 * 4
  assert {c['identities'] for c in clients} == {3}
  found = run_evaluation.evaluate_run(tiny, tmp_path, 'latest')
  assert found[0]['metrics'] == entries[-1]['metrics']
  highest = max(e['metrics']['accuracy'] for e in entries)
  (best,) = run_evaluation.evaluate_run(tiny, tmp_path, 'best')
  assert best['metrics']['accuracy'] == highest


@pytest.mark.slow
def test_a_classifier_that_stays_at_home_classifies_nothing(tiny):
  tiny = toy.replaced(tiny, {'components': ('fedpav',)})
  with pytest.raises(errors.ConfigError, match='is a personal parameter'):
    build.build(tiny)
  tiny = toy.replaced(tiny, {'components': ('standalone',)})
  setup = build.build(tiny)
  without = {n: x for n, x in setup.variables.items() if 'classifier' not in n}
  names = [c.name for c in setup.federation.clients]
  run = np.zeros(len(names), np.int32), names
  with pytest.raises(errors.ConfigError, match='is a personal parameter'):
    run_evaluation.evaluate_models(
      tiny, {'global': jax.device_get(without)}, *run
    )
  (entry,) = run_evaluation.evaluate_models(
    tiny, {'global': jax.tree.map(np.asarray, setup.variables)}, *run
  )
  assert entry['metrics'].keys() == {'accuracy'}
