import numpy as np
import pytest

from fedreid_jax import errors
from fedreid_jax.data import miniatures
from fedreid_jax.data.datasets import photos


def test_photos_are_of_different_people_and_moments(pictures):
  assert pictures.visible.shape == (10, 15, 2, 32, 16, 3)
  flat = pictures.visible.reshape(300, -1)
  assert len(np.unique(flat, axis=0)) == 300
  # Infrared has no colour.
  assert (np.ptp(pictures.infrared, axis=-1) == 0).all()
  assert not (pictures.visible == pictures.infrared).all()


def test_halves(pictures):
  train, test = pictures.halves()
  assert ([*train], [*test]) == ([*range(5)], [*range(5, 10)])
  assert [*pictures.cameras(20)] == [*range(15)]


def test_messages(pictures, tmp_path):
  with pytest.raises(errors.ConfigError, match="unknown data set 'market'"):
    miniatures.write('market', tmp_path, pictures)
  few = photos.Photos(pictures.visible[:5], pictures.infrared[:5])
  with pytest.raises(errors.ConfigError, match='5 persons, 15 cameras'):
    miniatures.write('viper', tmp_path / 'a', few)
  (tmp_path / 'file').touch()
  for root in (tmp_path, tmp_path / 'file'):
    with pytest.raises(errors.ResourceError, match='not empty'):
      miniatures.write('viper', root, pictures)
