"""Names of the files of evaluations."""

import json

import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load, recipes, validation
from fedreid_jax.evaluation import evaluator
from fedreid_jax.training import loop, named_models, run_evaluation
from fedreid_jax.training.files import (
  client_files,
  recorder,
  run_files,
  sealed,
  steps,
)


@pytest.fixture
def config(tmp_path):
  found = validation.validate(recipes.recipe('fedpav:smoke'))
  recorder.write_json(tmp_path / 'config.json', load.to_json(found))
  return found


def entries(*targets, score=10.0):
  return [{'target': t, 'metrics': {'mAP': score}} for t in targets]


def test_no_evaluation_overwrites_another(config, tmp_path):
  def write(which, *targets, changes=(), **more):
    chosen = toy.replaced(config, dict(changes))
    return run_evaluation.write(
      chosen, tmp_path, which, 4, entries(*targets, **more)
    ).name

  assert write('4', 'mall') == 'evaluation-4-mall.json'
  assert write('4', 'mall', score=11.0) == 'evaluation-4-mall.json'
  changes = {'evaluation.metric': 'cosine'}
  assert write('4', 'mall', changes=changes) == 'evaluation-4-mall-2.json'
  changes |= {'data.targets': ('mall:identities=3', 'park')}
  assert (
    write('4', 'mall', 'park', 'mall', changes=changes)
    == 'evaluation-4-mall+park.json'
  )
  assert (
    write('best', 'mall', 'park', changes=changes)
    == 'evaluation-4-mall+park-2.json'
  )
  assert write('4', 'a/b' * 40).startswith('evaluation-4-a_ba_b')
  found = json.loads((tmp_path / 'evaluation-4-mall.json').read_text())
  assert sealed.is_whole(found) and found.pop('sha256')
  assert found == {
    'checkpoint': '4',
    'round': 4,
    'overrides': {},
    'entries': entries('mall', score=11.0),
  }
  both = json.loads((tmp_path / 'evaluation-4-mall+park.json').read_text())
  assert both['overrides'] == {
    'data.targets': ['mall:identities=3', 'park'],
    'evaluation.metric': 'cosine',
  }


def test_a_file_that_was_not_completely_written_is_replaced(config, tmp_path):
  path = tmp_path / 'evaluation-4-mall.json'
  path.write_text('{"chec')
  found = run_evaluation.write(config, tmp_path, '4', 4, entries('mall'))
  assert found == path and json.loads(path.read_text())['round'] == 4


@pytest.mark.slow
def test_models_of_many_bytes_are_read_one_by_one(tmp_path, monkeypatch):
  small = 'model.features=(4,8),data.identities=4,data.target_identities=4'
  changes = 'rounds=1,execution.store=disk,data.targets=("mall",)'
  config = recipes.recipe('standalone', f'smoke,{small},{changes}')
  loop.train(validation.validate(config), tmp_path)

  def restored():
    saved = run_files.checkpoints_of(tmp_path)
    return named_models.restore(saved, 'latest').models

  rules = [{}, {'evaluation.batch_stats': 'source'}]
  together = restored()
  expected = [run_evaluation.evaluate(tmp_path, rule) for rule in rules]
  monkeypatch.setattr(named_models, 'AT_ONCE', 0)
  apart, seen = restored(), []
  assert len(together) == len(apart) == 3
  for owner, name in (
    (client_files.ClientFiles, '__getitem__'),
    (evaluator, '_test'),
  ):
    monkeypatch.setattr(owner, name, noted(getattr(owner, name), seen))
  assert [run_evaluation.evaluate(tmp_path, rule) for rule in rules] == expected
  assert seen.count('_test') == 3 * len(rules)
  tests = [i for i, name in enumerate(seen) if name == '_test']
  assert all(seen[i - 1] == '__getitem__' for i in tests)
  for path in steps.clients(tmp_path).iterdir():
    path.unlink()
  assert all(together.values())
  with pytest.raises(errors.IntegrityError, match='newer checkpoint'):
    next(iter(apart.values()))


def noted(function, seen):
  def run(*args):
    seen.append(function.__name__)
    return function(*args)

  return run
