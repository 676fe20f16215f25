"""The whole local round against a plain loop over batches."""

import jax
import jax.numpy as jnp
import numpy as np
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import prng
from fedreid_jax.core.prng import Stream
from fedreid_jax.data import augment, sampling
from fedreid_jax.round import compose

MOMENTUM, DECAY, LR = 0.9, 0.01, (0.05, 0.01)


def test_the_rate_may_move_within_a_round(clients):
  """The gradient of weight decay alone: every step scales by 1 - lr wd.

  Rates of round r with n steps are those at r, r + 1/n, ..., r + (n - 1)/n.
  """
  config, client = toy.toy_config(), clients[0]
  # Too small to move a weight, but a leaf without any gradient does not decay.
  config = toy.replaced(
    config,
    {
      'loss.identity': 1e-30,
      'local.epochs': 2,
      'optim.lr': 0.4,
      'optim.weight_decay': 0.5,
      'optim.momentum': 0.0,
      'optim.nesterov': False,
      'optim.schedule': 'linear',
      'optim.schedule_per_step': True,
      'optim.points': ((0.0, 0.0), (1.0, 1.0), (2.0, 0.5)),
    },
  )
  components = compose.load(('fedpav',), {}, algorithms)
  executor, variables, _ = toy.make_rounds(config, (client,), components)
  server, _, _ = toy.run(executor, variables, 2)
  _, (steps, _), _ = sampling.make(config.local, (client,), config.seed)
  rates = [b / steps for b in range(steps)]
  rates += [1 - 0.5 * b / steps for b in range(steps)]
  left = np.prod([1 - 0.4 * rate * 0.5 for rate in rates])
  name = next(n for n in server.shared if n.endswith('kernel'))
  np.testing.assert_allclose(
    server.shared[name][0], left * variables[name], rtol=1e-5
  )


def factor(name):
  return 0.5 if name.startswith('params/classifier') else 1.0


def test_two_rounds_of_one_client_are_pytorchs_sgd(clients):
  """Coupled weight decay, Nesterov's momentum anew each round, rate last."""
  config, client = toy.toy_config(), clients[0]
  config = toy.replaced(
    config,
    {
      'local.epochs': 2,
      'optim.weight_decay': DECAY,
      'optim.lr_multipliers': (('params/classifier', 0.5),),
      'optim.schedule': 'step',
      'optim.milestones': (1,),
      'optim.lr': LR[0],
      'optim.gamma': LR[1] / LR[0],
    },
  )
  components = compose.load(('fedpav',), {}, algorithms)
  executor, variables, model = toy.make_rounds(config, (client,), components)
  server, states, _ = toy.run(executor, variables, 2)

  seed, uid = prng.data(config.seed), prng.client_uid(client.name)
  views = augment.make(config.augment, config.data.mean, config.data.std)
  augmented = jax.jit(views.train)
  planner, _, _ = sampling.make(config.local, (client,), config.seed)

  @jax.jit
  def gradient(params, buffers, images, labels):
    def entropy(params):
      outputs, updated = model.apply({**params, **buffers}, images, train=True)
      scores = outputs.logits
      right = scores[jnp.arange(len(labels)), labels]
      return (jax.nn.logsumexp(scores, axis=1) - right).mean(), updated

    return jax.grad(entropy, has_aux=True)(params)

  own = jax.jit(model.init)(prng.client(seed, Stream.CLASSIFIER, 0, uid))
  own = {n: own[n] if 'classifier' in n else x for n, x in variables.items()}
  params = {n: np.asarray(x) for n, x in own.items() if n[:7] == 'params/'}
  buffers = {n: x for n, x in own.items() if n not in params}
  num_steps = 0
  for round_ in range(2):
    moment = dict.fromkeys(params, np.float32(0.0))
    rows, valid = planner(round_, 0)
    assert valid.all()
    for step, chosen in enumerate(rows):
      base = prng.client(seed, Stream.AUGMENT, round_, uid)
      images = client.images()[chosen]
      images = augmented(jax.random.fold_in(base, step), images)
      grads, buffers = gradient(params, buffers, images, client.labels[chosen])
      for name, grad in grads.items():
        g = np.asarray(grad) + np.float32(DECAY) * params[name]
        moment[name] = np.float32(MOMENTUM) * moment[name] + g
        move = g + np.float32(MOMENTUM) * moment[name]
        rate = np.float32(LR[round_] * factor(name))
        params[name] = params[name] - rate * move
      num_steps += 1
  assert num_steps == 2 * 2 * (9 // 4)
  found = {n: x[0] for n, x in (server.shared | states.personal).items()}
  assert found.keys() == own.keys()
  toy.assert_close_trees(found, {**params, **buffers}, 1e-5)
