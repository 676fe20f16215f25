"""Files of the distances of strangers."""

import json

import numpy as np
import pytest

import fedreid_jax as fr
from fedreid_jax import errors
from fedreid_jax.config import load as config_lib
from fedreid_jax.config import validation
from fedreid_jax.data import federation
from fedreid_jax.evaluation import strangers
from fedreid_jax.training import calibration, run_evaluation, snapshot

TINY = {
  'model.features': (4, 8),
  'data.identities': 12,
  'data.target_identities': 5,
  'evaluation.batch': 16,
  'execution.devices': 1,
  'evaluation.validation': 0.25,
}


def target(name):
  images = federation.Images(
    name,
    lambda: np.zeros((4, 1, 1, 3), np.uint8),
    np.array([0, 1, 0, 1], np.int32),
    np.zeros(4, np.int32),
    np.zeros(4, np.int32),
  )
  return federation.split_target(images, np.array([1, 1, 0, 0], bool))


def config(**fields):
  return validation.validate(fr.load_config('fedpav:smoke', fields))


def collected(*tests):
  found = calibration.Collector()
  for name, scale in tests:
    features = np.float32([[0], [1], [2], [3]]) * scale
    found('global', target(name), features)
  return found


LEAVES = {'global': {'params/a': np.float32([1, 2])}}


def test_held_out_persons_come_before_those_of_targets(tmp_path):
  path, own = tmp_path / 'a.json', config()
  digest = snapshot.digest_of(own, LEAVES['global'])
  collector = collected(('mall', 100), ('validation:plaza', 1))
  text = collector.write(path, own, LEAVES)
  assert '1 pair of 2 persons of validation:plaza' in text
  assert 'below 1 of 2 cannot be told' in text
  found = calibration.read(path, digest, 'euclidean')
  # Person 0 as the query at 0, and person 1 in the gallery at 3.
  assert found.distances.tolist() == [3] and found.persons == 2
  assert found.domains == ('validation:plaza',)
  assert 'of mall' in collected(('mall', 1)).write(path, own, LEAVES)


def test_a_file_of_another_model_or_distance_is_refused(tmp_path):
  path, own = tmp_path / 'a.json', config()
  digest = snapshot.digest_of(own, LEAVES['global'])
  collected(('mall', 1)).write(path, own, LEAVES)
  with pytest.raises(errors.IntegrityError, match='other models'):
    calibration.read(path, 'f' * 64, 'euclidean')
  with pytest.raises(errors.IntegrityError, match='euclidean distances'):
    calibration.read(path, digest, 'cosine')
  with pytest.raises(errors.DataError, match='no such file'):
    calibration.read(tmp_path / 'b.json', digest, 'euclidean')
  good = json.loads(path.read_text())
  for change in (
    '[]',
    '{',
    json.dumps(good | {'models': {'global': {}}}),
    json.dumps({'metric': 'euclidean'}),
    json.dumps(
      good | {'models': {'g': good['models']['global'] | {'distances': []}}}
    ),
    json.dumps(
      good | {'models': {'g': good['models']['global'] | {'distances': ['x']}}}
    ),
  ):
    path.write_text(change)
    with pytest.raises(errors.IntegrityError) as info:
      calibration.read(path, digest, 'euclidean')
    assert str(path) in str(info.value)


@pytest.mark.parametrize(
  'fields, field',
  [
    ({'evaluation.batch_stats': 'target'}, 'evaluation.batch_stats'),
    ({'evaluation.camera_norm': 'centre'}, 'evaluation.camera_norm'),
  ],
)
def test_features_that_no_search_has_are_refused(tmp_path, fields, field):
  calibration.check(config(), tmp_path / 'a.json')
  with pytest.raises(errors.ConfigError, match=field):
    calibration.check(config(**fields), tmp_path / 'a.json')
  with pytest.raises(errors.ResourceError):
    calibration.check(config(), tmp_path / 'no' / 'a.json')


@pytest.mark.parametrize(
  'fields, share',
  [
    ({}, 0.25),
    ({'data.targets': ('park',)}, 0.25),
    ({'evaluation.validation': 0.5}, 0.25),
    ({'data.world_seed': 3}, 0.0),
    ({'data.identities': 20}, 0.0),
  ],
)
def test_persons_who_were_trained_on_are_never_held_out(fields, share):
  saved = config(**{'evaluation.validation': 0.25})
  changed = config(**{'evaluation.validation': 0.25} | fields)
  assert calibration.held_out(changed, saved) == share


@pytest.mark.slow
def test_the_file_of_a_run_has_the_distances_of_its_embeddings(tmp_path):
  """The strangers are the three persons of each domain who were held out."""
  run, path = tmp_path / 'run', tmp_path / 'strangers.json'
  fr.train(fr.load_config('fedpav:smoke', TINY, rounds=1), run)
  saved = config_lib.load_saved(run)
  entries = run_evaluation.evaluate_run(saved, run, 'latest', strangers=path)
  names = {entry['target'] for entry in entries}
  own = {n for n in names if n.startswith('validation:')}
  assert own and names - own
  model = fr.load(run)
  found = calibration.read(path, model.digest, 'euclidean')
  assert {*found.domains} == own
  assert found.persons == 3 * len(own)
  assert len(found.distances) == 3 * len(own)
  assert isinstance(found, strangers.Calibration)
  # Without the file, nothing but targets is tested.
  before = {
    e['target'] for e in run_evaluation.evaluate_run(saved, run, 'latest')
  }
  assert before == names - own
