"""Losses that read further outputs of a network of two streams."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import types
from fedreid_jax.models import alignment, deen, networks, reid
from fedreid_jax.round import compose


@pytest.mark.usefixtures('shallow')
@pytest.mark.parametrize(
  'name, network, pool',
  [('deen', deen.DEEN, 'gap'), ('lba', alignment.CMAlign, 'gem')],
)
def test_a_loss_reads_what_its_network_says(name, network, pool):
  """The real network has the outputs that are read, compared by shapes."""
  backbone = network('resnet18', 1 / 16, small_stem=True, last_stride=1)
  model = networks.wrap(reid.ReIDNet(backbone, 3, pool), (16, 8, 3))
  (made,) = compose.load((name,), {}, algorithms)
  images, labels = jnp.zeros((6, 16, 8, 3)), jnp.arange(6) // 2
  valid = jnp.ones(6, bool)
  batch = types.Batch(images, labels, labels, jnp.arange(6) % 2, valid)
  ctx = toy.step(batch=batch)

  def loss(variables, key):
    outputs, buffers = model.apply(
      variables,
      images,
      train=True,
      key=key,
      mask=valid,
      modalities=batch.modalities,
      labels=labels,
    )
    given = dataclasses.replace(ctx, outputs=outputs)
    return *made.client.loss(variables, (), given), buffers

  key = jax.random.key(0)
  variables = jax.eval_shape(model.init, key)
  total, metrics, buffers = jax.eval_shape(loss, variables, key)
  assert total.shape == () and total.dtype == jnp.float32
  assert all(value.shape == () for value in metrics.values())
  assert 'batch_stats/backbone/infrared_bn1/mean' in buffers
