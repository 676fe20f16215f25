import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import toy

from fedreid_jax import algorithms
from fedreid_jax.core import types
from fedreid_jax.losses import cross_modal, identity, metric
from fedreid_jax.round import compose


def term(**arguments):
  (made,) = compose.load(('deen',), {'deen': arguments}, algorithms)
  return made.client.loss


def context(copies=3, valid=(True,) * 6):
  """Three identities, an image of either modality, copies of their features."""
  rng = np.random.default_rng(0)
  size = len(valid)

  def normal(columns):
    shape = (copies * size, columns)
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  every = types.Outputs(normal(5), normal(5), normal(3))
  own = types.Outputs(*(x[:size] for x in every[:3]), {'copies': every})
  labels = jnp.arange(size) // 2
  batch = types.Batch(
    jnp.zeros((size, 1)),
    labels,
    labels,
    jnp.arange(size) % 2,
    jnp.asarray(valid),
  )
  return toy.step(batch=batch, outputs=own)


def test_the_loss_is_the_sum_of_its_parts():
  ctx = context()
  every, batch = ctx.outputs.extras['copies'], ctx.batch
  labels, valid = jnp.tile(batch.labels, 3), jnp.tile(batch.valid, 3)
  f, f1, f2 = jnp.split(every.feature, 3)
  where = batch.labels, batch.modalities, batch.valid
  expected = jax.jit(
    lambda: (
      identity.cross_entropy(every.logits, labels, valid)
      + metric.hard_triplet(every.feature, labels, valid, 0.3)
      + 0.8 * cross_modal.centre_pair_mining(f, f1, *where)
      + 0.8 * cross_modal.centre_pair_mining(f, f2, *where)
      + 0.01 * cross_modal.orthogonality(f1, f2, batch.valid)
    )
  )()
  loss, metrics = jax.jit(lambda: term()({}, (), ctx))()
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  assert set(metrics) == {'identity', 'triplet', 'cpm', 'ort'}
  own = term(lam_cpm=0.0, lam_ort=0.0)
  plain, _ = jax.jit(lambda: own({}, (), ctx))()
  np.testing.assert_allclose(
    plain, metrics['identity'] + metrics['triplet'], rtol=1e-6
  )


def test_padded_images_change_nothing():
  ctx = context(valid=(True, True, True, True, False, False))
  every = ctx.outputs.extras['copies']
  padded = jnp.tile(~ctx.batch.valid, 3)[:, None]
  other = types.Outputs(*(jnp.where(padded, 9.0, leaf) for leaf in every[:3]))
  poisoned = dataclasses.replace(
    ctx, outputs=ctx.outputs._replace(extras={'copies': other})
  )
  loss = jax.jit(
    lambda c: term()({}, (), dataclasses.replace(ctx, outputs=c))[0]
  )
  np.testing.assert_array_equal(loss(ctx.outputs), loss(poisoned.outputs))
