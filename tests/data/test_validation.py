"""Persons of the clients that choose the best round."""

import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.config import recipes
from fedreid_jax.config import validation as checks
from fedreid_jax.data import load, validation
from fedreid_jax.data.federation import Images


def domain(name, people, cameras=3, modalities=1):
  """Two images of each person by each camera; pixels tell rows apart."""
  shape = people, cameras, 2
  identity, camera, _ = (x.ravel().astype(np.int32) for x in np.indices(shape))
  rows = len(identity)
  pixels = np.arange(rows, dtype=np.uint8).reshape(-1, 1, 1, 1)
  kind = (camera >= cameras / 2).astype(np.int32) if modalities > 1 else None
  return Images(
    name,
    lambda: pixels,
    identity,
    camera,
    np.zeros(rows, np.int32) if kind is None else kind,
  )


def test_held_out_persons_are_in_no_client_and_every_image_is_somewhere():
  whole = domain('plaza', 20), domain('yard', 40)
  trained, tests = validation.hold_out(whole, 0.1, 0)
  assert [t.name for t in tests] == ['validation:plaza', 'validation:yard']
  for before, kept, test, people in zip(
    whole, trained, tests, (2, 4), strict=True
  ):
    own = set(test.images.identities)
    assert len(own) == people and not own & set(kept.identities)
    pixels = np.concatenate([kept.images(), test.images.images()])
    assert sorted(pixels.ravel()) == list(before.images().ravel())
    (trial,) = test.trials
    rows = np.concatenate([trial.query, trial.gallery])
    assert sorted(rows) == list(range(6 * people))
    assert len(trial.query) == 3 * people  # one of each camera


def test_another_seed_holds_out_others():
  found = []
  for seed in (0, 0, 1):
    _, (test,) = validation.hold_out([domain('plaza', 40)], 0.1, seed)
    found.append(set(test.images.identities))
  assert found[0] == found[1] != found[2]


def test_small_domains_give_none():
  small = domain('hut', 9)
  trained, tests = validation.hold_out([small, domain('yard', 40)], 0.1, 0)
  assert trained[0] is small and [t.name for t in tests] == ['validation:yard']
  assert validation.notice(tests, 0.1) == ()
  _, none = validation.hold_out([small], 0.1, 0)
  (line,) = validation.notice(none, 0.1)
  assert 'fewer than 20 identities' in line


def test_domains_that_cannot_be_divided_name_the_field():
  alone = domain('hut', 20, 2)
  alone.cameras[:] = alone.identities % 2  # nobody is seen by both cameras
  with pytest.raises(errors.DataError) as caught:
    validation.hold_out([alone], 0.1, 0)
  assert caught.value.line().endswith('or set evaluation.validation=0')


def test_infrared_images_ask_for_visible_ones():
  _, (test,) = validation.hold_out([domain('gate', 20, 2, 2)], 0.1, 0)
  (trial,) = test.trials
  kinds = test.images.modalities
  assert (kinds[trial.query] == 1).all() and (kinds[trial.gallery] == 0).all()


def test_without_cameras_every_other_image_is_a_match():
  _, (test,) = validation.hold_out([domain('shop', 20, 1)], 0.1, 0)
  assert test.protocol == 'single_shot' and len(test.trials[0].query) == 2


def test_clients_of_a_recipe_lack_them():
  config = checks.validate(recipes.recipe('fedpav:smoke,data.identities=20'))
  federated = load.load(config.data, held_out=0.1)
  assert [c.num_identities for c in federated.clients] == [18] * 3
  names = [target.name for target in federated.targets]
  assert names[0] == 'mall' and len(names) == 4
  assert all(map(validation.is_validation, names[1:]))


def test_classes_cannot_be_held_out():
  config = recipes.recipe('cifar')
  config.evaluation.validation = 0.1
  with pytest.raises(errors.ConfigError, match='evaluation.validation'):
    checks.validate(config)
