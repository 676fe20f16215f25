"""A run of the toy clients, as commands and `fr.train` run it."""

import shutil

import pytest
import toy

from fedreid_jax.config import load
from fedreid_jax.training import build, loop


def _small(config):
  config = toy.replaced(
    config,
    {
      'name': 'toy',
      'rounds': 4,
      'execution.devices': 1,
      'components': ('fedpav', 'dfh'),
      'dfh.space': 'b',
      'checkpoint_every': 1,
      'evaluation.every': 2,
      'evaluation.batch': 8,
    },
  )
  return config


@pytest.fixture
def small(config):
  return _small(config)


@pytest.fixture(scope='session')
def _images(clients):
  return toy.toy_federation(clients)


@pytest.fixture
def federation(_images, monkeypatch):
  """The toy clients and one toy target, instead of rendered images."""
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: _images)
  return _images


@pytest.fixture(scope='session')
def _setups():
  return {}


@pytest.fixture
def built_once(federation, monkeypatch, _setups):
  """The toy clients, and the programs of earlier runs with equal fields.

  For tests of what a run does around its rounds. Those that compare a resumed
  run with another one build both anew.
  """
  anew = build.build

  def build_once(config, root=None):
    # A test may replace the images, or let them fail.
    images = build.load.load(config.data)
    if images is not federation:
      return anew(config, root)
    fields = repr(load.to_json(config))
    if fields not in _setups:
      _setups[fields] = anew(config, root)
    assert _setups[fields].secret is None  # it would be that of another run
    return _setups[fields]

  monkeypatch.setattr(build, 'build', build_once)
  return federation


@pytest.fixture(scope='session')
def _finished(_images, tmp_path_factory):
  folder = tmp_path_factory.mktemp('finished')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build.load, 'load', lambda *_, **__: _images)
    loop.train(_small(toy.toy_config()), folder)
  return folder


@pytest.fixture
def finished(_finished, tmp_path):
  """A work directory of `small` after its last round, free to change."""
  return shutil.copytree(_finished, tmp_path / 'finished')
