import jax
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.data import augment, federation
from fedreid_jax.evaluation import evaluator, features
from fedreid_jax.evaluation.evaluators import classification
from fedreid_jax.models import networks
from fedreid_jax.round import placement
from fedreid_jax.training.reports import report


def test_accuracy_of_four_images():
  logits = [[3, 1, 2], [0, 5, 4], [1, 1, 0], [2, 2, 2]]
  found = classification.evaluate_classification(logits, [0, 2, 0, 1])
  assert found == {
    'accuracy': 50.0,
    'queries': 4,
    'gallery': 0,
    'invalid_queries': 0,
    'ties': 2,
  }


@pytest.mark.parametrize(
  'logits, labels, message',
  [
    (np.zeros((2, 3)), [0], 'one row of logits'),
    (np.zeros((0, 3)), [], 'one row of logits'),
    (np.zeros(3), [0, 1, 2], 'one row of logits'),
    (np.zeros((2, 3)), [0, 3], 'classes 0 to 3 of 3'),
    (np.zeros((2, 3)), [-1, 0], 'classes -1 to 0 of 3'),
    ([[0, np.nan]], [0], 'NaN logits'),
  ],
)
def test_what_cannot_be_evaluated(logits, labels, message):
  with pytest.raises(errors.DataError, match=message):
    classification.evaluate_classification(logits, labels)


@pytest.fixture(scope='module')
def parts():
  """A toy network, its variables, transforms and a test of three classes."""
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 3), toy.IMAGE_SHAPE)
  variables = jax.jit(model.init)(jax.random.key(0))
  transforms = augment.make(config.augment, (0.5,), (0.25,))
  images = toy.toy_images('ash', 23)
  return (
    model,
    variables,
    transforms,
    federation.class_target(images, images.identities),
  )


def test_logits_are_the_models_whatever_the_batch(parts):
  model, variables, transforms, target = parts
  pixels = target.images.images()
  expected = model.apply(variables, transforms.test(pixels), train=False)[
    0
  ].logits
  for devices, batch in ((1, 4), (2, 5)):
    found = features.make_extractor(
      model,
      transforms.test,
      placement.make_mesh(devices),
      batch=batch,
      flip=False,
      feature='logits',
    )(variables, pixels)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('model_name', ['global', 'client:ash.part1'])
def test_entry_of_a_classification_test(parts, model_name):
  model, variables, transforms, target = parts
  config = toy.toy_config().evaluation
  evaluate = evaluator.make(
    config, (target,), model, transforms, placement.make_mesh(1)
  )
  (entry,) = evaluate({model_name: variables})
  pixels = transforms.test(target.images.images())
  logits = model.apply(variables, pixels, train=False)[0].logits
  right = np.asarray(logits).argmax(axis=1) == target.images.identities
  assert entry == {
    'model': model_name,
    'target': 'ash',
    'protocol': 'accuracy',
    'direction': 'all',
    'query': '',
    'distance': '',
    'trials': 1,
    'metrics': {'accuracy': pytest.approx(100 * right.mean())},
    'queries': 23,
    'gallery': 0,
    'invalid_queries': 0,
    'ties': 0,
  }


def test_checkpoints_are_judged_by_map_or_accuracy():
  assert report.score({'rank1': 1.0, 'mAP': 2.0}) == 2.0
  assert report.score({'accuracy': 3.0}) == 3.0


def test_best_three_rounds_by_accuracy():
  entries = [
    {
      'round': round_,
      'target': 'ash',
      'model': 'global',
      'metrics': {'accuracy': 10.0 * value},
    }
    for round_, value in enumerate((5, 9, 7, 8, 1), start=1)
  ]
  found = {e['kind']: e for e in report.summarise(entries)}
  assert found['last']['metrics'] == {'accuracy': 10.0}
  assert found['best_three']['rounds'] == [2, 3, 4]
  assert found['best_three']['metrics'] == {'accuracy': pytest.approx(80.0)}
