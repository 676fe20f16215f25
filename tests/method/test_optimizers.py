"""Which leaves of a recipe's network weight decay reaches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import errors
from fedreid_jax.config import validation
from fedreid_jax.method import optimizers
from fedreid_jax.models import resnet


def settings(**changes) -> optimizers.Optim:
  return optimizers.Optim(**changes)


def test_three_steps_of_nesterov_with_coupled_decay():
  """PyTorch's rule by hand: g += wd p; m = rho m + g; p -= lr (g + rho m)."""
  rule = optimizers.make(
    settings(momentum=0.9, weight_decay=0.1, nesterov=True)
  )
  params = {'params/w': jnp.array([1.0])}
  state = rule.init(params)
  p, m = 1.0, 0.0
  gradient = rule.grad(lambda own, g: ((g * own['params/w']).sum(), g))
  for lr, g in ((0.1, 2.0), (0.1, -1.0), (0.01, 0.5)):
    grads, aux = gradient(params, g)
    assert aux == g
    params, state = rule.update(grads, state, params, lr)
    g = g + 0.1 * p
    m = 0.9 * m + g
    p = p - lr * (g + 0.9 * m)
    np.testing.assert_allclose(params['params/w'], [p], rtol=1e-6)


@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
def test_only_leaves_the_loss_depends_on_decay(name):
  """A gradient of zero decays, an absent one does not (PyTorch's None)."""
  rule = optimizers.make(settings(name=name, weight_decay=0.5))
  start = {
    f'params/{n}': jnp.array([2.0]) for n in ('used', 'zero', 'cut', 'no')
  }

  def loss(own):
    cut = jax.lax.stop_gradient(own['params/cut'])
    total = own['params/used'] * cut + 0.0 * own['params/zero']
    return total.sum(), own['params/no']

  def step(_, carry):
    params, state = carry
    grads, _ = rule.grad(loss)(params)
    return rule.update(grads, state, params, 0.1)

  run = jax.jit(lambda p: jax.lax.fori_loop(0, 2, step, (p, rule.init(p)))[0])
  end = run(start)
  moved = {n.removeprefix('params/') for n in end if end[n] != start[n]}
  assert moved == {'used', 'zero'}
  grads, _ = rule.grad(loss)(start)
  expected = {'used': 2.0 + 1.0, 'zero': 1.0, 'cut': 0.0, 'no': 0.0}
  assert {n.removeprefix('params/'): g for n, g in grads.items()} == expected


def test_heavy_ball():
  rule = optimizers.make(
    settings(momentum=0.5, weight_decay=0.0, nesterov=False)
  )
  params = {'params/w': jnp.array([0.0])}
  state = rule.init(params)
  for _ in range(3):
    params, state = rule.update(
      {'params/w': jnp.array([1.0])}, state, params, 1.0
    )
  # steps of 1, 1.5, 1.75
  np.testing.assert_allclose(params['params/w'], [-4.25])


def test_multipliers_are_by_name_and_first_match():
  rules = (('params/classifier/', 10.0), ('params/', 2.0))
  rule = optimizers.make(settings(lr_multipliers=rules, weight_decay=0.0))
  one = jnp.array([1.0])
  params = {'params/classifier/kernel': one, 'params/backbone/w': one}
  new, _ = rule.update(params, rule.init(params), params, 0.01)
  lost = {n: float(params[n][0] - new[n][0]) for n in params}
  ratio = lost['params/classifier/kernel'] / lost['params/backbone/w']
  np.testing.assert_allclose(ratio, 5.0, rtol=1e-4)


@pytest.mark.parametrize(
  'changes, at, expected',
  [
    ({}, 7, 0.05),
    ({'schedule': 'step', 'milestones': (20, 30), 'gamma': 0.5}, 19, 0.05),
    ({'schedule': 'step', 'milestones': (0.5, 0.75), 'gamma': 0.5}, 24, 0.05),
    ({'schedule': 'step', 'milestones': (0.5, 0.75), 'gamma': 0.5}, 25, 0.025),
    ({'schedule': 'step', 'milestones': (0.5, 0.75), 'gamma': 0.5}, 38, 0.0125),
    ({'schedule': 'step', 'milestones': (20, 30), 'gamma': 0.5}, 20, 0.025),
    ({'schedule': 'step', 'milestones': (20, 30), 'gamma': 0.5}, 39, 0.0125),
    ({'schedule': 'step', 'milestones': (1,), 'gamma': 0.5}, 1, 0.025),
    ({'schedule': 'step', 'milestones': (2, 2), 'gamma': 0.5}, 2, 0.0125),
    (
      {
        'schedule': 'step',
        'milestones': (0.5,),
        'gamma': 0.5,
        'schedule_rounds': 20,
      },
      *(10, 0.025),
    ),
    ({'schedule': 'cosine'}, 25, 0.025),
    ({'schedule': 'cosine', 'schedule_rounds': 100}, 50, 0.025),
    ({'warmup': 10}, 0, 0.005),
    ({'warmup': 10}, 9, 0.05),
  ],
)
def test_schedules(changes, at, expected):
  rate = optimizers.schedule(settings(lr=0.05, **changes), 50)
  np.testing.assert_allclose(rate(at), expected, rtol=1e-5)


@pytest.mark.parametrize(
  'at, expected', [(0, 2e-5), (16, 0.2), (33, 0.1), (50, 0.0), (8, 0.10001)]
)
def test_ramp_of_l2rw(at, expected):
  points = ((0, 1e-4), (16, 1.0), (50, 0.0))
  rate = optimizers.schedule(
    settings(lr=0.2, schedule='linear', points=points), 50
  )
  np.testing.assert_allclose(rate(at), expected, rtol=1e-5, atol=1e-9)


def test_unknown_names_are_errors():
  with pytest.raises(errors.ConfigError, match='optimiser'):
    optimizers.make(settings(name='sdg'))
  with pytest.raises(errors.ConfigError, match='schedule'):
    optimizers.schedule(settings(schedule='triangle'), 5)


def unmoved(clients, components, **changes):
  """Parameters that a round of strong weight decay leaves as they were.

  Leaves that start at zero are left out: nothing of them can decay.
  """
  config = toy.replaced(
    toy.toy_config(), {'local.steps': 1, 'optim.weight_decay': 0.5}
  )
  config = toy.replaced(config, changes | {'components': components})
  made = validation.load_components(config)
  executor, variables, _ = toy.make_rounds(config, clients[:1], made)
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


@pytest.mark.slow
def test_cross_entropy_moves_everything(clients):
  changes = NECK | {'loss.identity': 1e-30, 'loss.triplet_on': 'feature'}
  assert not unmoved(clients, ('fedavg',), **changes)


@pytest.mark.slow
def test_stage_classifiers_of_snr(clients):
  """Those of a stage without a loss, and all without any."""
  first, second = (f'params/backbone/snr_{k}/classifier/kernel' for k in (1, 2))
  changes = {'local.sampler': 'pk', 'snr.loss': 'entropy'}
  changes |= {'snr.identity_weights': (0.0, 0.0), 'snr.weights': (0.0, 0.0)}
  found = unmoved(clients, ('fedavg', 'snr'), **changes)
  assert found == {first, second}
  changes['snr.weights'] = (0.1, 0.0)
  assert unmoved(clients, ('fedavg', 'snr'), **changes) == {second}


RESNET = {
  'model.name': 'resnet18',
  'model.width': 1 / 32,
  'model.small_stem': True,
  'model.neck': 'bnneck',
}


@pytest.mark.slow
def test_heads_of_dns(clients, monkeypatch):
  """Without distillation, on a network of the stem and three stages."""
  monkeypatch.setitem(resnet.DEPTHS, 'resnet18', (False, (1, 1, 1)))
  own = {
    'model.modality_specific_stages': 3,
    'model.pool': 'gem',
    'dns.distillation': 0.0,
  }
  found = unmoved(clients, ('fedavg', 'dns'), **RESNET, **own)
  assert found == {f'params/domain_{d}/kernel' for d in ('visible', 'infrared')}
