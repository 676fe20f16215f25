"""Moments of the gallery: by hand, by training mode, and through tests."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import schema, validation
from fedreid_jax.data import augment, federation
from fedreid_jax.evaluation import evaluator, target_stats
from fedreid_jax.evaluation.evaluator import Evaluator
from fedreid_jax.method.batch_stats import BatchMoments
from fedreid_jax.models import networks
from fedreid_jax.round import placement

IMAGES = toy.toy_images('mall', 24, 5)
QUERIES = np.arange(24) < 8
TARGET = federation.split_target(IMAGES, QUERIES)
LAYER = 'batch_stats/layer'


@pytest.fixture(scope='module')
def parts():
  """A toy network, variables with moments of other images, and transforms."""
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 24), toy.IMAGE_SHAPE)
  variables = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  for name, leaf in variables.items():
    if name.endswith('/mean'):
      variables[name] = leaf + np.float32(0.3)
    if name.endswith('/var'):
      variables[name] = leaf * np.float32(2)
  return model, variables, augment.make(config.augment, (0.5,), (0.25,))


def given(rule, batch=64, momentum=0.1):
  config = toy.replaced(
    toy.toy_config().evaluation,
    {'batch_stats': rule, 'moments_batch': batch, 'moments_momentum': momentum},
  )
  return config


def adapt(parts, target=TARGET, **fields):
  model, variables, transforms = parts
  measure = target_stats.make_measure(model, transforms.test)
  return target_stats.adapt(measure, variables, target, given(**fields))


@functools.cache
def compiled_once(apply):
  return jax.jit(apply, static_argnames='train')


def embedded(parts, variables, rows, train=False):
  model, _, transforms = parts
  view = transforms.test(IMAGES.images()[rows])
  apply = compiled_once(model.apply)
  return np.asarray(apply(variables, view, train=train)[0].embedding)


def by_hand(values, *trials, **fields):
  """Adapts one number, of mean 10 and variance 4, to images of one value."""

  def measure(variables, images, modalities, valid):
    own = images[valid, 0, 0, 0].astype(np.float32)
    return {'layer': BatchMoments(np.float32(own.size), own.mean(), own.var())}

  pixels = np.uint8(values).reshape(-1, 1, 1, 1)
  labels = np.arange(len(pixels))
  images = federation.Images('a', lambda: pixels, labels, labels, 0 * labels)
  target = federation.Target(
    'a',
    images,
    tuple(federation.Trial(np.array([0]), np.array(rows)) for rows in trials),
  )
  start = {f'{LAYER}/mean': np.float32(10), f'{LAYER}/var': np.float32(4)}
  found = target_stats.adapt(measure, start, target, given(**fields))
  moments = [
    (float(one[f'{LAYER}/mean']), float(one[f'{LAYER}/var']))
    for one in found.models
  ]
  return moments, found.model_of.tolist()


def test_the_gallery_by_hand():
  """Images 1, 3, 5 and 11 have the mean 5 and the variance 14."""
  for batch in (2, 3, 4, 9):
    moments, model_of = by_hand([200, 1, 3, 5, 11], [1, 2, 3, 4], rule='target')
    assert moments == [(5, 14)] and model_of == [0] * 5, batch
  # The gallery is that of all trials.
  assert by_hand([200, 1, 3, 5, 11], [3, 4], [1, 2], [2, 3], rule='target') == (
    moments,
    model_of,
  )


def test_a_stream_by_hand():
  """Parts (20, 40) and (60, 60): means 30 and 60, variances 100 and 0.

  With a momentum of 1/4 the mean is 10, 15 and 26.25; the variance is 4, 28
  and 21. For the first part this is the estimate with a prior of
  N = 2 (3/4) / (1/4) = 6 images: (6 * 10 + 2 * 30) / 8 = 15.
  """
  moments, model_of = by_hand(
    [200, 20, 40, 60, 60], [1, 2, 3, 4], rule='stream', batch=2, momentum=0.25
  )
  assert moments == [(15, 28), (26.25, 21)]
  # The query has the moments at the end.
  assert model_of == [1, 0, 0, 1, 1]


def test_the_last_part_of_a_stream_is_not_a_single_image():
  _, model_of = by_hand([0, *range(5)], range(1, 6), rule='stream', batch=4)
  assert model_of == [1, 0, 0, 0, 1, 1]


def test_one_part_is_normalised_by_its_own_moments(parts):
  """AdaBN: the features are those of a layer in training mode."""
  (adapted,), _ = adapt(parts, rule='target')
  rows = target_stats.gallery_of(TARGET)
  assert rows.tolist() == np.flatnonzero(~QUERIES).tolist()
  expected = embedded(parts, parts[1], rows, train=True)
  np.testing.assert_allclose(
    embedded(parts, adapted, rows), expected, atol=2e-5
  )
  before = embedded(parts, parts[1], rows)
  assert np.abs(before - expected).max() > 0.05


def test_parts_of_a_stream_with_momentum_one_have_their_own_moments(parts):
  """Nado et al. 2020: normalisation by the batch that is predicted."""
  models, model_of = adapt(parts, rule='stream', batch=8, momentum=1.0)
  assert len(models) == 2
  for number, variables in enumerate(models):
    rows = np.flatnonzero((model_of == number) & ~QUERIES)
    assert len(rows) == 8
    np.testing.assert_allclose(
      embedded(parts, variables, rows),
      embedded(parts, parts[1], rows, train=True),
      atol=2e-5,
    )


def test_a_stream_with_momentum_zero_changes_nothing(parts):
  for variables in adapt(parts, rule='stream', batch=8, momentum=0.0).models:
    toy.assert_equal_trees(variables, parts[1])


@pytest.mark.parametrize('batch', [5, 16])
def test_moments_of_the_first_layer_are_those_of_all_images(parts, batch):
  """Parts of 4 images are merged with the differences between them."""
  model, variables, transforms = parts
  (adapted,), _ = adapt(parts, rule='target', batch=batch)
  pixels = transforms.test(IMAGES.images()[~QUERIES])
  layers = jax.device_get(jax.jit(model.measure)(variables, pixels)[1])
  name = min(n for n in layers if n.startswith('backbone'))
  for kind in ('mean', 'var'):
    np.testing.assert_allclose(
      adapted[f'batch_stats/{name}/{kind}'],
      getattr(layers[name], kind),
      rtol=1e-4,
      atol=1e-5,
    )


@pytest.mark.parametrize('rule', target_stats.RULES)
def test_neither_queries_nor_identities_are_used(parts, rule):
  pixels = IMAGES.images().copy()
  pixels[QUERIES] = 255 - pixels[QUERIES]
  other = IMAGES._replace(
    images=lambda: pixels, identities=IMAGES.identities[::-1].copy()
  )
  changed = federation.split_target(other, QUERIES)
  toy.assert_equal_trees(
    adapt(parts, rule=rule, batch=6).models,
    adapt(parts, changed, rule=rule, batch=6).models,
  )


@pytest.mark.parametrize('rule', target_stats.RULES)
def test_parameters_stay(parts, rule):
  for variables in adapt(parts, rule=rule, batch=6).models:
    assert variables.keys() == parts[1].keys()
    changed = {
      n for n, x in variables.items() if not np.array_equal(x, parts[1][n])
    }
    assert changed == {n for n in variables if n.startswith('batch_stats/')}


@pytest.mark.slow
@pytest.mark.usefixtures('shallow')
def test_a_layer_without_gallery_images_keeps_its_moments(parts):
  config = toy.replaced(
    toy.toy_config(),
    {
      'model.name': 'resnet18',
      'model.width': 1 / 16,
      'model.modality_specific_stages': 1,
    },
  )
  model = networks.wrap(networks.build(config.model, 24), toy.IMAGE_SHAPE)
  variables = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
  (adapted,), _ = adapt((model, variables, parts[2]), rule='target')
  infrared = [n for n in variables if 'infrared' in n and 'batch_stats' in n]
  assert infrared
  for name in infrared:
    np.testing.assert_array_equal(adapted[name], variables[name])
  assert not np.array_equal(
    adapted['batch_stats/neck/bn/mean'], variables['batch_stats/neck/bn/mean']
  )


def evaluate(parts, config, devices=1, seen=None, models=('global',)):
  model, variables, transforms = parts
  run = evaluator.make(
    config, [TARGET], model, transforms, placement.make_mesh(devices)
  )
  return run(dict.fromkeys(models, variables), seen=seen)


@pytest.mark.parametrize('rule', target_stats.RULES)
def test_the_ranked_features_are_those_of_the_parts(parts, rule):
  """On any number of devices, also for an ensemble and both necks."""
  config = replace(
    given(rule, batch=8, momentum=0.5), report_both_neck_features=True
  )
  found = {}
  (entry,) = evaluate(
    parts, config, seen=lambda name, target, rows: found.update({name: rows})
  )
  models, model_of = adapt(parts, rule=rule, batch=8, momentum=0.5)
  for number, variables in enumerate(models):
    rows = np.flatnonzero(model_of == number)
    np.testing.assert_allclose(
      found['global'][rows], embedded(parts, variables, rows), atol=1e-5
    )
  (running,) = evaluate(parts, given('running'))
  assert running['metrics']['mAP'] != entry['metrics']['mAP']
  assert 'mAP_before_neck' in entry['metrics']
  (other,) = evaluate(parts, config, devices=2)
  assert other == entry
  config = replace(
    config,
    ensemble=('concat',),
    report_both_neck_features=False,
    ensemble_norm=False,  # so that the order is that of one model
  )
  entries = evaluate(parts, config, models=('client:a', 'client:b'))
  scores = [one['metrics']['mAP'] for one in entries]
  assert len(scores) == 3 and scores == pytest.approx([scores[0]] * 3)


def test_other_images_have_the_moments_at_the_end(parts):
  """As those with a trigger, which are of no gallery."""
  kept = []

  def keep(model, target):
    kept.append(model.embed(target.images.images()))
    return {'kept': 1}

  model, _, transforms = parts
  config, own = given('stream', batch=8, momentum=0.5), Evaluator(keep)
  run = evaluator.make(
    config, [TARGET], model, transforms, placement.make_mesh(1), (own,)
  )
  run({'global': parts[1]})
  last = adapt(parts, rule='stream', batch=8, momentum=0.5).models[-1]
  np.testing.assert_allclose(
    kept[0], embedded(parts, last, slice(None)), atol=1e-5
  )


@pytest.mark.parametrize(
  'fields, message',
  [
    ({'data.task': 'classification'}, 'has no gallery'),
    ({'model.norm': 'group'}, 'no statistics of batches'),
    ({'evaluation.moments_momentum': 1.5}, 'moments_momentum'),
    ({'evaluation.moments_batch': 1}, 'moments_batch'),
  ],
)
def test_what_has_no_moments_of_a_gallery_is_refused(fields, message):
  config = schema.default()
  config.data.sources, config.data.targets = ('plaza',), ('mall',)
  config.evaluation.batch_stats = 'stream'
  validation.validate(config)
  config.update_from_flattened_dict(fields)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


def test_rules_are_choices_of_the_field():
  declared = schema.fields()['evaluation.batch_stats'].choices()
  assert {*target_stats.RULES} < {*declared}
