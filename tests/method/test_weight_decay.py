"""Which leaves of a recipe's network weight decay reaches."""

import jax
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.models import resnet
from fedreid_jax.round import compose


def unmoved(clients, components, **changes):
  """Parameters that a round of strong weight decay leaves as they were.

  Leaves that start at zero are left out: nothing of them can decay.
  """
  config = toy.toy_config()
  config.local.steps, config.optim.weight_decay = 1, 0.5
  config.update_from_flattened_dict(changes)
  made = compose.load(
    components,
    {n: config[n].to_dict() for n in components if n in config},
    algorithms,
  )
  executor, variables, _ = toy.make_executor(config, clients[:1], made)
  start = jax.device_get(executor.init(variables)[0])
  server, _, _ = toy.run(executor, variables, 1)
  return {
    name
    for name, leaf in start.shared.items()
    if name.startswith('params/')
    and leaf.any()
    and np.array_equal(leaf, server.shared[name])
  }


NECK = {
  'model.neck': 'bnneck',
  'loss.identity': 0.0,
  'loss.triplet': 1.0,
  'local.sampler': 'pk',
}


@pytest.mark.slow
def test_a_neck_after_the_only_loss(clients):
  """The loss on the feature does not depend on neck and classifier."""
  found = unmoved(
    clients, ('fedavg',), **NECK, **{'loss.triplet_on': 'feature'}
  )
  assert found == {'params/neck/bn/scale', 'params/classifier/kernel'}
  found = unmoved(clients, ('fedavg',), **NECK)
  assert found == {'params/classifier/kernel'}


def test_cross_entropy_moves_everything(clients):
  changes = NECK | {'loss.identity': 1e-30, 'loss.triplet_on': 'feature'}
  assert not unmoved(clients, ('fedavg',), **changes)


@pytest.mark.slow
def test_stage_classifiers_of_snr(clients):
  """Those of a stage without a loss, and all beside the other form of it."""
  first, second = (f'params/backbone/snr_{k}/classifier/kernel' for k in (1, 2))
  changes = {'model.variant': 'snr_entropy', 'local.sampler': 'pk'}
  found = unmoved(clients, ('fedavg', 'snr'), **changes)
  assert found == {first, second}
  changes |= {'snr.loss': 'entropy', 'snr.identity_weights': (0.0, 0.0)}
  changes['snr.weights'] = (0.1, 0.0)
  assert unmoved(clients, ('fedavg', 'snr'), **changes) == {second}


RESNET = {
  'model.name': 'resnet18',
  'model.width': 1 / 32,
  'model.small_stem': True,
  'model.neck': 'bnneck',
}
DOMAINS = {f'params/domain_{d}/kernel' for d in ('visible', 'infrared')}


@pytest.mark.slow
@pytest.mark.parametrize(
  'components, changes, expected',
  [
    (('fedavg', 'dns'), {'dns.distillation': 0.0}, DOMAINS),
    (('fedavg',), {}, {*DOMAINS, 'css'}),
  ],
  ids=['no distillation', 'network only'],
)
def test_heads_of_dns(clients, components, changes, expected, monkeypatch):
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1, 1)))
  own = {
    'model.variant': 'dns',
    'model.modality_specific_stages': 3,
    'model.pool': 'gem',
  }
  found = unmoved(clients, components, **RESNET, **own, **changes)
  assert {n if 'css' not in n else 'css' for n in found} == {*expected}
