import json
from pathlib import Path

import commands
import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors, evaluate_retrieval
from fedreid_jax.data import augment, federation
from fedreid_jax.evaluation import evaluator, features
from fedreid_jax.models import networks
from fedreid_jax.round import placement
from fedreid_jax.training import build, loop, named_models, run_evaluation


@pytest.fixture(scope='module')
def network():
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  transforms = augment.make(config.augment, (0.5,), (0.25,))
  return model, jax.jit(model.init)(jax.random.key(0)), transforms.test


def images(num=23):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (num, *toy.IMAGE_SHAPE), dtype=np.uint8)


def extract(network, devices=1, batch=4, flip=False, feature='embedding'):
  model, variables, view = network
  run = features.make_extractor(
    model,
    view,
    placement.make_mesh(devices),
    batch=batch,
    flip=flip,
    feature=feature,
  )
  return lambda pixels: run(variables, pixels)


def test_any_number_of_devices_gives_the_same_bits(network):
  one = extract(network)(images())
  assert one.shape == (23, 8) and one.dtype == np.float32
  for devices in (2, 4):
    np.testing.assert_array_equal(one, extract(network, devices)(images()))


def test_the_padded_tail_changes_nothing(network):
  run = extract(network)
  np.testing.assert_array_equal(run(images())[:5], run(images()[:5]))


def test_flip_is_the_mean_of_both_sides(network):
  plain, pixels = extract(network), images(8)
  mean = (plain(pixels) + plain(pixels[:, :, ::-1])) / 2
  both = extract(network, flip=True)(pixels)
  np.testing.assert_allclose(both, mean, rtol=1e-5, atol=1e-6)
  mirrored = extract(network, flip=True)(pixels[:, :, ::-1])
  np.testing.assert_allclose(both, mirrored, rtol=1e-5, atol=1e-6)


def test_feature_before_the_neck_is_another(network):
  before = extract(network, feature='feature')(images(4))
  assert (before >= 0).all()
  assert (before != extract(network)(images(4))).any()


@pytest.mark.slow
@pytest.mark.usefixtures('shallow')
def test_each_modality_has_its_own_stem():
  config = toy.replaced(
    toy.toy_config(),
    {
      'model.name': 'resnet18',
      'model.width': 1 / 32,
      'model.small_stem': True,
      'model.modality_specific_stages': 1,
    },
  )
  model = networks.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  variables = jax.jit(model.init)(jax.random.key(0))
  transforms = augment.make(config.augment, (0.5,), (0.25,))
  run = features.make_extractor(
    model,
    transforms.test,
    placement.make_mesh(1),
    batch=4,
    flip=False,
    feature='feature',
  )
  pixels = images(4)
  visible = run(variables, pixels)
  kinds = np.array([0, 1, 0, 1], np.int32)
  both = run(variables, pixels, kinds)
  np.testing.assert_array_equal(both[kinds == 0], visible[kinds == 0])
  assert (both[kinds == 1] != visible[kinds == 1]).any(axis=1).all()


def test_each_modality_has_its_own_model(network):
  model, variables, view = network
  run = features.make_extractor(
    model,
    view,
    placement.make_mesh(1),
    batch=4,
    flip=False,
    feature='embedding',
  )
  other = {n: 1.5 * x for n, x in variables.items()}
  kinds = (np.arange(23) % 3 == 0).astype(np.int32)
  pixels = images()
  found = features.of_each(run, (variables, other), pixels, kinds)
  expected = [run(v, pixels, kinds) for v in (variables, other)]
  for kind in (0, 1):
    np.testing.assert_array_equal(
      found[kinds == kind], expected[kind][kinds == kind]
    )
  assert (expected[0] != expected[1]).any()
  alone = features.of_each(run, (variables, other), pixels, 0 * kinds)
  np.testing.assert_array_equal(alone, run(variables, pixels))


ROOT = Path(__file__).parents[2]
IMAGES = toy.toy_images('target', 24, 5)
TARGET = federation.split_target(IMAGES, np.arange(24) < 8)


def test_features_in_a_row_have_unit_parts():
  first = np.array([[3, 4], [0, 0]], np.float32)
  second = np.array([[0, 2], [5, 0]], np.float32)
  joined = features.join([first, second], norm=True)
  np.testing.assert_allclose(joined, [[0.6, 0.8, 0, 1], [0, 0, 1, 0]])
  assert joined.dtype == np.float32
  plain = features.join([first, second], norm=False)
  np.testing.assert_array_equal(plain, [[3, 4, 0, 2], [0, 0, 5, 0]])
  assert features.join([first], norm=True) is first


@pytest.mark.parametrize('side', ['before', 'after'])
def test_both_sides_of_the_neck_are_ranked(side):
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  variables = jax.jit(model.init)(jax.random.key(0))
  # A neck that keeps one number: what it ranks differs from its input.
  variables['batch_stats/neck/bn/var'] = (
    variables['batch_stats/neck/bn/var'].at[1:].set(1e12)
  )
  transforms = augment.make(config.augment, (0.5,), (0.25,))

  def ranked(**changes):
    chosen = toy.replaced(config.evaluation, changes)
    run = evaluator.make(
      chosen, (TARGET,), model, transforms, placement.make_mesh(1)
    )
    return run({'global': variables})[0]['metrics']

  own, other = ('embedding', 'feature')[:: 1 if side == 'before' else -1]
  alone = ranked(feature=other, report_both_neck_features=False)
  both = ranked(feature=own, report_both_neck_features=True)
  assert {n: both[f'{n}_{side}_neck'] for n in alone} == alone
  assert both['mAP'] != alone['mAP']


def test_the_mean_model_has_the_mean_of_every_leaf():
  one = {'params/a': np.float32([1, 2]), 'batch_stats/a': np.float32(4)}
  two = {'params/a': np.float32([3, 6]), 'batch_stats/a': np.float32(8)}
  mean = features.average([one, two])
  assert mean['params/a'].tolist() == [2, 4] and mean['batch_stats/a'] == 6
  assert mean['params/a'].dtype == np.float32


def test_members_are_clients_and_the_order_is_as_asked():
  models = {f'client:{k}': {'params/a': np.float32(k)} for k in (1, 2)}
  made = features.ensembles(models | {'global': {}}, ('average', 'concat'))
  assert [*made] == ['average', 'concat']
  assert made['average'] == [{'params/a': 1.5}]
  assert made['concat'] == [*models.values()]
  assert features.ensembles({'global': {}}, ()) == {}
  for few in ({'global': {}}, {'client:1': {}, 'global': {}}):
    with pytest.raises(errors.ConfigError, match='without shared parameters'):
      features.ensembles(few, ('average',))


@pytest.fixture(scope='module')
def parts():
  """A toy network, three models of it, and its transforms."""
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 5), toy.IMAGE_SHAPE)
  init = jax.jit(model.init)
  models = {f'client:{k}': init(jax.random.key(k)) for k in range(3)}
  return model, models, augment.make(config.augment, (0.5,), (0.25,))


def evaluate(parts, target, kinds, norm=True):
  model, models, transforms = parts
  config = toy.replaced(
    toy.toy_config().evaluation, {'ensemble': kinds, 'ensemble_norm': norm}
  )
  run = evaluator.make(
    config, (target,), model, transforms, placement.make_mesh(1)
  )
  return {entry['model']: entry for entry in run(models)}


@pytest.mark.parametrize('norm', [True, False])
def test_ranks_of_an_ensemble_are_those_of_its_features(parts, norm):
  model, models, transforms = parts
  found = evaluate(parts, TARGET, ('concat',), norm)
  pixels = transforms.test(IMAGES.images())
  blocks = []
  for variables in models.values():
    block = np.asarray(model.apply(variables, pixels, train=False)[0].embedding)
    if norm:
      block = block / np.sqrt((block**2).sum(axis=1, keepdims=True))
    blocks.append(block)
  rows = np.hstack(blocks)
  (trial,) = TARGET.trials
  expected = evaluate_retrieval(
    rows[trial.query],
    rows[trial.gallery],
    IMAGES.identities[trial.query],
    IMAGES.identities[trial.gallery],
    IMAGES.cameras[trial.query],
    IMAGES.cameras[trial.gallery],
  )
  entry = found['concat']
  assert [*found] == [*models, 'concat']
  assert entry['metrics']['mAP'] == pytest.approx(expected['mAP'])
  assert entry['metrics']['rank1'] == pytest.approx(expected['rank1'])


def test_classes_are_scored_by_the_mean_model_only(parts):
  target = federation.class_target(IMAGES, np.arange(5))
  found = evaluate(parts, target, ('average',))
  model, models, transforms = parts
  mean = jax.tree.map(lambda *x: np.mean(x, axis=0), *models.values())
  pixels = transforms.test(IMAGES.images())
  logits = np.asarray(model.apply(mean, pixels, train=False)[0].logits)
  right = logits.argmax(axis=1) == IMAGES.identities
  accuracy = found['average']['metrics']['accuracy']
  assert accuracy == pytest.approx(100 * right.mean())
  with pytest.raises(errors.ConfigError, match='no classifier'):
    evaluate(parts, target, ('concat',))


def test_models_of_clients_are_read_one_after_another(parts):
  """All of them may not fit in memory."""
  model, models, transforms = parts
  events = []

  class Rows(dict):
    def __getitem__(self, client):
      events.append(client)
      return super().__getitem__(client)

  names = [name.removeprefix('client:') for name in models]
  rows = Rows(enumerate(models.values()))
  (first, *_) = models.values()
  given = named_models.joined({'global': first}, rows, names)
  assert [*given] == ['global', *models] and len(given) == 1 + len(models)
  # A method that shares nothing may keep models of clients as well.
  both = named_models.joined(models, {0: first}, names)
  assert [*both] == [*models] and both[next(iter(models))] is first
  run = evaluator.make(
    toy.toy_config().evaluation,
    (TARGET,),
    model,
    transforms,
    placement.make_mesh(1),
  )
  entries = run(given, seen=lambda name, *_: events.append(name))
  assert [entry['model'] for entry in entries] == [*given]
  expected = ['global']
  for number, name in enumerate(models):
    expected += [number, name]
  assert events == expected


@pytest.mark.slow
def test_ensembles_of_a_standalone_run(clients, config, tmp_path, monkeypatch):
  built = federation.Federation(
    clients, (TARGET,), toy.IMAGE_SHAPE, (0.5,), (0.25,), 'toy'
  )
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: built)
  config = toy.replaced(
    config,
    {
      'name': 'toy',
      'rounds': 1,
      'execution.devices': 1,
      'components': ('standalone',),
    },
  )
  results = loop.train(config, tmp_path)
  found = run_evaluation.evaluate(
    tmp_path, {'evaluation.ensemble': ('concat', 'average')}
  )
  names = [f'client:{c.name}' for c in clients]
  assert [e['model'] for e in found] == [*names, 'concat', 'average']
  assert {e['target'] for e in found} == {'target'}
  last = [e for e in results['evaluation'] if e['round'] == 1]
  assert [e['metrics'] for e in found[:4]] == [e['metrics'] for e in last]
  written = json.loads((tmp_path / 'evaluation-1-target.json').read_text())
  assert written['entries'] == found
  assert written['overrides'] == {'evaluation.ensemble': ['concat', 'average']}
  code, _, err = commands.launch(
    'evaluate', f'--workdir={tmp_path}', '--ensemble=median'
  )
  assert code == 2 and "unknown choice 'median'" in err
