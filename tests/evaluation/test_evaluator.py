"""Evaluators beside the one of the task: which run, and where metrics go."""

import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import load, parsing, recipes, schema, validation
from fedreid_jax.core import plugins
from fedreid_jax.data import federation
from fedreid_jax.evaluation import evaluator, evaluators
from fedreid_jax.round import placement
from fedreid_jax.training import build

IMAGES = toy.toy_images('mall', 24, 5)
BOTH = IMAGES._replace(modalities=(np.arange(24) % 2).astype(np.int32))
TARGET = federation.split_target(IMAGES, np.arange(24) < 8)
CLASSES = federation.class_target(IMAGES, IMAGES.identities)
GAP = [f'gap_{name}' for name in ('offset', 'rest', 'persons')]


def evaluate(parts, targets, *extra, **fields):
  model, variables, transforms = parts
  config = toy.replaced(toy.toy_config().evaluation, fields)
  run = evaluator.make(
    config, targets, model, transforms, placement.make_mesh(1), extra
  )
  return [entry['metrics'] for entry in run({'global': variables})]


def built_in(task='retrieval'):
  """Returns the names of the evaluators of a task."""
  found = []
  for name in plugins.available(evaluators):
    module = plugins.imported(
      f'{evaluators.__name__}.{name}', plugins.EVALUATOR
    )
    if getattr(module, 'TASK', 'retrieval') == task:
      found.append(name)
  return found


def test_every_evaluator_adds_metrics_and_changes_no_others(parts):
  assert len(plugins.available(evaluators)) >= 5
  names = [name for name in built_in() if name != 'retrieval']
  target = TARGET._replace(images=BOTH)
  (alone,) = evaluate(parts, (target,))
  extra = [evaluator.load(name, 'retrieval') for name in names]
  (found,) = evaluate(parts, (target,), *extra)
  assert {name: found[name] for name in alone} == alone
  assert {*GAP, 'collision', 'TPR_at_FPR_1e-2'} <= found.keys() - alone.keys()
  assert all(type(value) in (int, float) for value in found.values())


def test_metrics_of_both_sides_of_the_neck(parts):
  roc = evaluator.load('roc', 'retrieval')
  both = {'report_both_neck_features': True}
  (found,) = evaluate(parts, (TARGET,), roc, **both)
  (other,) = evaluate(parts, (TARGET,), roc, feature='feature')
  assert {n: found[f'{n}_before_neck'] for n in other} == other
  (classes,) = evaluate(parts, (CLASSES,), **both)
  assert [*classes] == ['accuracy']


def test_a_target_without_a_metric_has_no_entry_of_it(parts):
  gap = evaluator.load('modality_gap', 'retrieval')
  one, two = evaluate(parts, (TARGET, TARGET._replace(images=BOTH)), gap)
  assert not one.keys() & {*GAP} and {*GAP} <= two.keys()


def test_features_of_a_target_are_computed_once(parts):
  calls = []
  pixels = IMAGES.images()
  images = IMAGES._replace(images=lambda: calls.append(1) or pixels)
  roc = evaluator.load('roc', 'retrieval')
  evaluate(parts, (TARGET._replace(images=images),), roc)
  assert len(calls) == 1


def test_two_metrics_of_one_name_are_refused(parts):
  def again(model, target):
    return {'mAP': model.features(target).mean()}

  with pytest.raises(errors.ConfigError, match="two evaluators report 'mAP'"):
    evaluate(parts, (TARGET,), evaluator.Evaluator(again))


def test_evaluators_of_another_task_are_refused():
  assert built_in('classification') == ['classification']

  def loaded(task, name):
    config = validation.validate(recipes.recipe('fedpav:smoke'))
    return build.load_evaluators(
      replace(
        config,
        data=replace(config.data, task=task),
        evaluation=replace(config.evaluation, extra=(name,)),
      )
    )

  with pytest.raises(errors.ConfigError, match='evaluates classification'):
    loaded('retrieval', 'classification')
  assert loaded('classification', 'classification') == ()
  with pytest.raises(errors.ConfigError, match='evaluation.extra'):
    loaded('classification', 'roc')


def test_an_evaluator_of_a_stranger_has_its_options(
  parts, tmp_path, monkeypatch
):
  package = tmp_path / 'my_metrics'
  package.mkdir()
  (package / '__init__.py').write_text('')
  (package / 'of_a_stranger.py').write_text("""
import dataclasses
from typing import Annotated
from fedreid_jax.core.options import Checked, Range

@dataclasses.dataclass(frozen=True)
class Options(Checked):
  '''Hyper-parameters.'''
  power: Annotated[int, Range(1, 4), 'power of the features'] = 2

def evaluate(model, target, options):
  return {'norm': (abs(model.features(target)) ** options.power).mean()}
""")
  monkeypatch.syspath_prepend(tmp_path)
  config = parsing.change(
    recipes.recipe('fedpav:smoke'),
    [
      "evaluation.extra=('my_metrics.of_a_stranger','roc','roc')",
      'of_a_stranger.power=3',
    ],
  )
  extra = build.load_evaluators(validation.validate(config))
  assert len(extra) == 2
  (found,) = evaluate(parts, (TARGET,), extra[0])
  assert found['norm'] > 0 and type(found['norm']) is float
  with pytest.raises(errors.ConfigError, match='of_a_stranger.power'):
    parsing.change(config, ['of_a_stranger.power=5'])


def test_the_metrics_of_the_page(parts):
  page = (Path(__file__).parents[2] / 'docs/extend.md').read_text()
  section = page.partition('## A metric is one file')[2].partition('\n## ')[0]
  extra = []
  for text in section.split('```python')[1:]:
    module = types.ModuleType('page')
    exec(text.partition('```')[0], module.__dict__)
    own = plugins.options_of(module, {})
    bound = plugins.bound(module, plugins.EVALUATOR, own)
    extra.append(evaluator.Evaluator(bound))
  (found,) = evaluate(parts, (TARGET,), *extra)
  assert found['feature_norm'] > 0 and found['feature_power'] > 0


def test_an_evaluator_of_the_package_has_a_group_once_it_is_listed():
  config = schema.default()
  assert 'open_set' not in config
  with pytest.raises(errors.ConfigError, match="list 'open_set' in evaluation"):
    parsing.change(config, ['open_set.seed=1'])
  listed = ["evaluation.extra=('open_set',)", 'open_set.strangers=0.25']
  parsing.change(config, listed)
  validation.validate(config)
  assert config.open_set.strangers == 0.25 and 'roc' not in config
  with pytest.raises(errors.ConfigError, match='open_set.strangers'):
    parsing.change(config, ['open_set.strangers=2.0'])
  load.change(config, {'evaluation.extra': ('roc',)})
  assert 'open_set' not in config and config.roc.every == 1


def test_options_of_the_package_change_the_metric(parts):
  """With more strangers fewer persons are known."""
  few, many = (
    evaluator.load('open_set', 'retrieval', {'strangers': share, 'seed': 1})
    for share in (0.2, 0.8)
  )
  (one,), (other,) = (evaluate(parts, (TARGET,), x) for x in (few, many))
  assert one['DIR_at_FAR_1'] != other['DIR_at_FAR_1']


def test_options_of_an_evaluator_with_their_defaults_name_no_other_run():
  """Runs from before there were these options have the same digests."""
  config = parsing.change(schema.default(), ["evaluation.extra=('roc',)"])
  saved = load.to_json(config)
  assert 'roc' not in saved
  assert load.from_json(saved, (), 'config.json').roc.every == 1
  config.roc.every = 3
  assert load.to_json(config)['roc'] == {'every': 3}


def test_an_evaluator_may_be_listed_by_an_assignment():
  config = recipes.recipe('fedpav:smoke')
  config.evaluation.extra = ('open_set',)
  typed = validation.validate(config)
  assert typed.options['open_set'].every == 1 and 'open_set' not in config
  none = replace(typed.evaluation, extra=())
  without = validation.validate(replace(typed, evaluation=none))
  assert 'open_set' not in without.options


@pytest.mark.parametrize(
  'every, due', [(1, [0, 1, 2, 3, 4]), (2, [0, 2, 4]), (3, [0, 3]), (0, [])]
)
def test_an_evaluator_is_due_at_multiples_of_its_period_and_at_the_end(
  every, due
):
  own = evaluator.load('roc', 'retrieval', {'every': every})
  assert [n for n in range(5) if own.is_due(n)] == due and own.is_due(None)


def test_an_evaluator_that_is_not_due_does_not_run(parts):
  model, variables, transforms = parts
  never = evaluator.Evaluator(lambda *_: pytest.fail('runs'), 0)
  run = evaluator.make(
    toy.toy_config().evaluation,
    (TARGET,), model, transforms, placement.make_mesh(1), (never,),
  )  # fmt: skip
  (entry,) = run({'global': variables}, number=3)
  assert 'mAP' in entry['metrics']


@pytest.mark.parametrize(
  ('model', 'tested'),
  [
    ('client:ash', 'ash validation:ash'),
    ('client:ash.camera1', 'ash validation:ash'),
    ('client:oak', 'oak'),
    ('client:birch', 'ash oak validation:birch'),
    ('client:elm', 'ash oak validation:ash validation:birch'),
    ('global', 'ash oak validation:ash validation:birch'),
    ('cluster:0', 'ash oak validation:ash validation:birch'),
  ],
)
def test_clients_are_tested_on_their_domains(parts, model, tested):
  network, variables, transforms = parts
  names = 'ash', 'oak', 'validation:ash', 'validation:birch'
  run = evaluator.make(
    *(toy.toy_config().evaluation, [TARGET._replace(name=x) for x in names]),
    *(network, transforms, placement.make_mesh(1)),
  )
  found = run({model: variables})
  assert ' '.join(entry['target'] for entry in found) == tested


@pytest.mark.parametrize(
  'name, message',
  [
    ('rocc', 'did you mean roc'),
    ('nowhere.metric', "no module 'nowhere.metric'"),
    (3, 'is a whole number'),
  ],
)
def test_what_is_no_evaluator_is_refused_by_the_configuration(name, message):
  config = schema.default()
  config.evaluation.extra = (name,)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


def test_a_module_without_the_function_is_no_evaluator(monkeypatch):
  empty = types.ModuleType('my_metrics_empty.nothing')
  monkeypatch.setitem(sys.modules, 'my_metrics_empty.nothing', empty)
  with pytest.raises(errors.ConfigError, match="no function 'evaluate'"):
    evaluator.load('my_metrics_empty.nothing', 'retrieval')
