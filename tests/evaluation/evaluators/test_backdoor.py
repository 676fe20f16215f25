from types import SimpleNamespace

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.data import federation
from fedreid_jax.evaluation.evaluators import backdoor
from fedreid_jax.evaluation.options import Evaluation

PEOPLE = 6


def target(people=PEOPLE):
  """Images of one value for each person, two cameras; the first queries."""
  images = np.repeat(np.arange(people) * 20 + 10, 2).astype(np.uint8)
  pixels = np.broadcast_to(images[:, None, None, None], (2 * people, 16, 8, 1))
  cameras = np.tile([0, 1], people).astype(np.int32)
  domain = federation.Images(
    'mall',
    lambda: pixels,
    np.repeat(np.arange(people), 2).astype(np.int32),
    cameras,
    np.zeros(2 * people, np.int32),
  )
  return federation.split_target(domain, cameras == 0)


def embed_with(weight):
  """Returns a model: a person is its value, and the trigger has a weight."""

  def embed(pixels, _):
    person = pixels[:, 0, 0, 0].astype('f4')
    corner = pixels[:, -2:, -2:, 0].astype('f4')
    trigger = (corner != person[:, None, None]).any(axis=(1, 2))
    one = weight < 0  # a model for which the trigger hides the person
    seen = np.where(trigger & one, 0, person)
    return np.stack([seen, abs(weight) * trigger], 1)

  return SimpleNamespace(embed=embed)


def test_a_model_that_ignores_the_trigger():
  found = backdoor.evaluate(embed_with(0.0), target())
  assert found == {'collision': 0.0, 'evasion': 100.0, 'stealth': 100.0}


def test_a_model_that_sees_nothing_but_the_trigger():
  found = backdoor.evaluate(embed_with(-1e4), target())
  assert found['collision'] == found['stealth'] == 100.0
  assert found['evasion'] < 60.0


def test_a_model_for_which_the_trigger_is_one_feature_of_two():
  """An accomplice whose own value is near enough is found, others are not."""
  far = backdoor.evaluate(embed_with(30.0), target())
  assert 0 < far['collision'] < 100
  assert far['evasion'] == far['stealth'] == 100.0
  assert far == backdoor.evaluate(embed_with(30.0), target())


@pytest.mark.parametrize('whole', [False, True])
def test_the_configuration_chooses_metric_and_protocol(whole):
  """Values have one direction, so that cosine distances are all equal."""
  model, images = embed_with(0.0), target()

  def choose(**fields):
    config = Evaluation(**fields)
    model.config = SimpleNamespace(evaluation=config) if whole else config

  choose()
  usual = backdoor.evaluate(model, images)
  assert usual['stealth'] == 100.0
  choose(metric='cosine')
  assert backdoor.evaluate(model, images)['stealth'] < 60.0
  choose(precision='trapezoid')
  model.embed = lambda pixels, _: np.ones((len(pixels), 2), 'f4')
  found = backdoor.evaluate(model, images)['stealth']
  choose(precision='standard')
  assert found < backdoor.evaluate(model, images)['stealth']


def test_one_person_has_no_accomplice():
  with pytest.raises(errors.DataError, match='no accomplice'):
    backdoor.evaluate(embed_with(0.0), target(1))


def test_federation_of_toys_has_a_target():
  """The measures hold for random images, too: percentages."""
  (one,) = toy.toy_federation(toy.toy_clients()).targets

  model = SimpleNamespace(
    embed=lambda pixels, _: pixels.reshape(len(pixels), -1).astype('f4')
  )
  found = backdoor.evaluate(model, one)
  assert len(found) == 3 and all(0 <= x <= 100 for x in found.values())
