"""A trained run that the tests of this folder share."""

import pytest

import fedreid_jax as fr

TINY = {
  'model.features': (4, 8),
  'data.identities': 4,
  'data.target_identities': 4,
  'evaluation.batch': 16,
  'evaluation.flip': True,
  'execution.devices': 1,
}


@pytest.fixture(scope='session')
def trained():
  """Returns a function that trains a tiny network for a round in a folder."""

  def train(folder, **fields):
    fr.train(fr.load_config('fedpav:smoke', TINY | fields, rounds=1), folder)
    return folder

  return train


@pytest.fixture(scope='session')
def tiny_run(tmp_path_factory, trained):
  """The work directory of a run that ranks features before the neck."""
  fields = {'evaluation.feature': 'feature', 'model.neck': 'bnneck'}
  return trained(tmp_path_factory.mktemp('run'), **fields)
