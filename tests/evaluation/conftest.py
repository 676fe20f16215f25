"""The network of the tests of evaluations."""

import jax
import pytest
import toy

from fedreid_jax.data import augment
from fedreid_jax.models import networks


@pytest.fixture(scope='module')
def parts():
  """A toy network, its variables and its transforms."""
  config = toy.toy_config()
  model = networks.wrap(networks.build(config.model, 24), toy.IMAGE_SHAPE)
  variables = jax.jit(model.init)(jax.random.key(0))
  return model, variables, augment.make(config.augment, (0.5,), (0.25,))
