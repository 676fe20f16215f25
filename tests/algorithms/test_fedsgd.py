"""FedSGD: FedAvg with one step a round, or with one epoch a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.config import parsing, recipes
from fedreid_jax.core import prng
from fedreid_jax.core.prng import Stream
from fedreid_jax.data import augment, sampling
from fedreid_jax.round import compose


@pytest.mark.slow
def test_one_round_is_one_step_of_the_gradient_of_all_images(clients):
  """w - lr (sum_k p_k g_k + wd w), statistics averaged after every batch."""
  config, clients = toy.toy_config(), (clients[0], clients[2])
  config = toy.replaced(
    config,
    {
      'local.accumulate': True,
      'local.drop_last': False,
      'optim.momentum': 0.0,
      'optim.nesterov': False,
      'optim.weight_decay': 0.1,
    },
  )
  components = compose.load(('fedavg',), {}, algorithms)
  executor, variables, model = toy.make_rounds(config, clients, components)
  server, _, logs = toy.run(executor, variables, 1)
  assert logs[0]['metrics']['loss'] > 0

  views = augment.make(config.augment, config.data.mean, config.data.std)
  augmented = jax.jit(views.train)
  planner, _, _ = sampling.make(config.local, clients, config.seed)
  start = {n: x for n, x in variables.items() if n.startswith('params/')}

  @jax.jit
  def of_batch(buffers, images, labels, valid):
    def total(params):
      outputs, updated = model.apply(
        {**params, **buffers}, images, train=True, mask=valid
      )
      each = -jax.nn.log_softmax(outputs.logits)[jnp.arange(4), labels]
      return jnp.where(valid, each, 0.0).sum(), updated

    return jax.grad(total, has_aux=True)(start)

  mean = {n: np.zeros(x.shape) for n, x in variables.items()}
  images = sum(c.num_images for c in clients)
  for k, client in enumerate(clients):
    uid = prng.client_uid(client.name)
    base = prng.client(prng.data(config.seed), Stream.AUGMENT, 0, uid)
    buffers = {n: x for n, x in variables.items() if n not in start}
    rows, valid = planner(0, k)
    assert valid.sum() == client.num_images and not valid.all()
    for step in range(len(rows)):
      photos = client.images()[rows[step]]
      grads, buffers = of_batch(
        buffers,
        augmented(jax.random.fold_in(base, step), photos),
        client.labels[rows[step]],
        valid[step],
      )
      for name, grad in grads.items():
        mean[name] += np.asarray(grad) / images
    for name, value in buffers.items():
      mean[name] += np.asarray(value) * client.num_images / images
  expected = mean | {
    n: x - config.optim.lr * (mean[n] + 0.1 * x) for n, x in start.items()
  }
  found = {n: x[0] for n, x in server.shared.items()}
  assert found.keys() == expected.keys()
  toy.assert_close_trees(found, expected, 1e-6)


def test_the_variant_of_wu_and_gong_is_fedavg():
  ours = parsing.flatten(recipes.recipe('fedsgd'))
  theirs = parsing.flatten(
    recipes.recipe('fedavg', 'synthetic,data.labels=max')
  )
  assert ours.pop('name') != theirs.pop('name')
  assert ours == theirs
  assert (ours['fraction'], ours['local.epochs']) == (1.0, 1)
