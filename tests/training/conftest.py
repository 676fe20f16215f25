"""A run of the toy clients, as commands and `fr.train` run it."""

import pytest
import toy

from fedreid_jax.training import build


@pytest.fixture
def federation(clients, monkeypatch):
  """The toy clients and one toy target, instead of rendered images."""
  built = toy.toy_federation(clients)
  monkeypatch.setattr(build.load, 'load', lambda *_, **__: built)
  return built


@pytest.fixture
def small(config):
  config.name, config.rounds, config.execution.devices = 'toy', 4, 1
  config.components, config.dfh.space = ('fedpav', 'dfh'), 'b'
  config.checkpoint_every, config.evaluation.every = 1, 2
  config.evaluation.batch = 8
  return config
