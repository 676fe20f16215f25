"""Weights that were trained on the images of a private run, or might have."""

import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.models import weights
from fedreid_jax.training import earlier_data
from fedreid_jax.training.files import recorder


def config_of(path, start_from=''):
  return toy.replaced(
    toy.toy_config(),
    {'model.pretrained': str(path), 'start_from': str(start_from)},
  )


def write(path, **run):
  content = weights.encode({'a': np.zeros(1, np.float32)}, {'run': run})
  path.write_bytes(content)
  return path


@pytest.mark.parametrize(
  'run',
  [
    {'data_digest': 'mine'},
    {'data_digest': 'other', 'earlier_digests': ['x', 'mine']},
  ],
)
def test_weights_of_the_same_images_are_refused(tmp_path, run):
  path = write(tmp_path / 'a.safetensors', **run)
  with pytest.raises(errors.ConfigError, match='on the images of this run'):
    earlier_data.condition(config_of(path), 'mine')


@pytest.mark.parametrize('run', [{}, {'data_digest': 'other'}])
def test_other_weights_are_a_condition_of_every_epsilon(tmp_path, run):
  path = write(tmp_path / 'a.safetensors', **run)
  assert earlier_data.condition(config_of(path), 'mine') == (
    'holds if a.safetensors was not trained on persons of this run'
  )


@pytest.mark.parametrize('name', ['', 'convnet-synthetic'])
def test_random_and_synthetic_weights_need_no_condition(name):
  assert earlier_data.condition(config_of(name), 'mine') == ''


def test_digests_follow_a_chain_of_runs(tmp_path):
  path = write(
    tmp_path / 'a.safetensors', data_digest='b', earlier_digests=['a']
  )
  described = {'data_digest': 'd', 'earlier_digests': ['c', 'a']}
  recorder.write_sealed(tmp_path / 'run.json', described)
  found = earlier_data.digests(config_of(path, start_from=tmp_path))
  assert found == ['b', 'a', 'd', 'c']
