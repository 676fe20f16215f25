from dataclasses import replace

import numpy as np
import pytest
import toy
import toy_run

from fedreid_jax.training import loaded_run


@pytest.fixture
def run():
  return toy_run.toy_run()


def test_statistics_come_from_the_server_or_the_images(run):
  client = run.client('birch')
  features = run.features(client.images(), 'feature')
  means = np.stack([features[client.labels == k].mean(0) for k in range(3)])
  found = loaded_run.domain_statistics(run)
  assert found.shape == (4, 4, 8)
  np.testing.assert_allclose(found[1, 0], means.mean(0), atol=1e-5)
  np.testing.assert_allclose(found[1, 1], means.var(0), atol=1e-5)
  kept = np.ones((4, 4, 8), np.float32)
  sent = run._replace(states={'dfh': kept})
  np.testing.assert_array_equal(loaded_run.domain_statistics(sent), kept)
  fewer = run._replace(states={'dfh': kept[:3]})  # of other clients
  np.testing.assert_array_equal(loaded_run.domain_statistics(fewer), found)


def test_the_space_of_the_statistics(run):
  assert loaded_run.statistics_of(run).space == 'feature'
  run = run._replace(config=toy.replaced(run.config, {'dfh.space': 'b'}))
  assert loaded_run.statistics_of(run).space == 'embedding'
  run = run._replace(config=replace(run.config, components=('fedpav',)))
  assert loaded_run.statistics_of(run).space == 'feature'
