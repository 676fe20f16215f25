"""Evaluators beside the one of the task: which run, and where metrics go."""

import sys
import types
from pathlib import Path

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import parsing, schema, validation
from fedreid_jax.core import plugins
from fedreid_jax.data import augment, federation
from fedreid_jax.evaluation import evaluator, evaluators
from fedreid_jax.models import networks
from fedreid_jax.round import placement
from fedreid_jax.training import build

IMAGES = toy.toy_images('mall', 24, 5)
BOTH = IMAGES._replace(modalities=(np.arange(24) % 2).astype(np.int32))
TARGET = federation.split_target(IMAGES, np.arange(24) < 8)
CLASSES = federation.class_target(IMAGES, IMAGES.identities)
GAP = [f'gap_{name}' for name in ('offset', 'rest', 'persons')]


@pytest.fixture(scope='module')
def parts():
  """A toy network, its variables and its transforms."""
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 24), toy.IMAGE_SHAPE)
  variables = jax.jit(model.init)(jax.random.key(0))
  return model, variables, augment.make(config.augment, (0.5,), (0.25,))


def evaluate(parts, targets, *extra, **fields):
  model, variables, transforms = parts
  config = toy.toy_config().evaluation
  config.update(fields)
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
    evaluate(parts, (TARGET,), again)


def test_evaluators_of_another_task_are_refused():
  assert built_in('classification') == ['classification']
  config = schema.default()
  config.evaluation.extra = ('classification',)
  with pytest.raises(errors.ConfigError, match='evaluates classification'):
    build.load_evaluators(config)
  config.data.task = 'classification'
  assert build.load_evaluators(config) == ()
  config.evaluation.extra = ('roc',)
  with pytest.raises(errors.ConfigError, match='evaluation.extra'):
    build.load_evaluators(config)


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
    schema.default(),
    [
      "evaluation.extra=('my_metrics.of_a_stranger','roc','roc')",
      'of_a_stranger.power=3',
    ],
  )
  validation.validate(config)
  extra = build.load_evaluators(config)
  assert len(extra) == 2
  (found,) = evaluate(parts, (TARGET,), extra[0])
  assert found['norm'] > 0 and type(found['norm']) is float
  with pytest.raises(errors.ConfigError, match='of_a_stranger.power'):
    parsing.change(config, ['of_a_stranger.power=5'])


def test_the_metric_of_the_page(parts):
  page = (Path(__file__).parents[2] / 'docs/extend.md').read_text()
  section = page.partition('## A metric is one file')[2]
  module = {}
  exec(section.partition('```python')[2].partition('```')[0], module)
  (found,) = evaluate(parts, (TARGET,), module['evaluate'])
  assert found['feature_norm'] > 0


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
