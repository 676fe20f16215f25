"""One program for the moments of both modalities."""

import numpy as np

from fedreid_jax.apps.deploy.exchange import versions


def test_each_modality_has_its_own_moments():
  kernel, one, two = (np.full(2, k, np.float32) for k in (1, 2, 3))
  models = [{'params/a': kernel, 'batch_stats/a': x} for x in (one, two)]
  joined = versions.join(models)
  assert [*joined] == ['params/a', 'batch_stats/a', 'infrared:batch_stats/a']

  def embed(variables, images, modalities):
    return images * variables['params/a'] * variables['batch_stats/a']

  images = np.ones((3, 2), np.float32)
  for chosen, wanted in ((models, [2, 3, 2]), (models[:1], [2, 2, 2])):
    got = versions.select(embed)(
      versions.join(chosen), images, np.array([0, 1, 0])
    )
    np.testing.assert_array_equal(got[:, 0], wanted)
