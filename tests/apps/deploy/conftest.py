"""A trained run and short networks that the tests of this folder share."""

import pytest

import fedreid_jax as fr
from fedreid_jax.models import resnet
from fedreid_jax.models.backbones import osnet

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


@pytest.fixture
def short(monkeypatch):
  """Gives ResNets a block a stage, and OSNets two stages of two streams.

  These have every operation of the whole networks.
  """
  for name, (bottleneck, _) in resnet.DEPTHS.items():
    monkeypatch.setitem(resnet.DEPTHS, name, (bottleneck, (1, 1, 1, 1)))
  monkeypatch.setattr(osnet, 'STREAMS', 2)
  monkeypatch.setattr(osnet, 'CHANNELS', osnet.CHANNELS[:3])
