import functools

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms, errors
from fedreid_jax.config import recipes, validation
from fedreid_jax.round import compose
from fedreid_jax.training import build


def personal_after_a_round(clients):
  config = toy.replaced(toy.toy_config(), {'local.sampler': 'pk'})
  chosen = compose.load(('fedpav', 'mixstyle'), {}, algorithms)
  executor, variables, _ = toy.make_rounds(config, clients, chosen)
  return toy.run(executor, variables, 1)[1].personal


def test_defaults_are_those_of_the_paper_for_re_identification():
  config = recipes.recipe('mixstyle')
  found = config.mixstyle.to_dict()
  assert found == {'alpha': 0.1, 'probability': 0.5, 'stages': (1, 2)}
  # DFH's base loss, so that both are compared in one setting.
  base = recipes.recipe('dfh')
  assert config.loss == base.loss and config.optim == base.optim
  assert config.model.neck == base.model.neck == 'none'


@pytest.mark.slow
def test_fields_reach_the_network():
  config = validation.validate(
    recipes.recipe('mixstyle', 'smoke,mixstyle.stages=(2,)')
  )
  model = build.network(config, 4, (16, 8, 3))
  images = np.random.default_rng(0).normal(size=(6, 16, 8, 3)).astype('f4')
  config = toy.replaced(config, {'mixstyle.probability': 0.0})
  never = build.network(config, 4, (16, 8, 3))
  config = toy.replaced(config, {'mixstyle.probability': 1.0})
  always = build.network(config, 4, (16, 8, 3))
  variables = jax.jit(model.init)(jax.random.key(0))

  def features(model):
    key = jax.random.key(1)
    run = jax.jit(functools.partial(model.apply, train=True))
    return np.asarray(run(variables, images, key=key)[0].feature)

  assert abs(features(never) - features(always)).max() > 1e-3


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'mixstyle.stages': ()}, 'no stage is mixed'),
    ({'mixstyle.stages': (1, 5)}, 'stage 5 of a network with 4'),
  ],
)
def test_configurations_that_cannot_run(changes, message):
  config = recipes.recipe('mixstyle')
  config.update_from_flattened_dict(changes)
  with pytest.raises(errors.ConfigError, match=message):
    validation.validate(config)


@pytest.mark.slow
def test_mixing_of_one_client_does_not_depend_on_the_others(clients):
  alone = personal_after_a_round(clients[:1])
  together = personal_after_a_round(clients[:3])
  for name in alone:
    np.testing.assert_array_equal(alone[name][0], together[name][0])
